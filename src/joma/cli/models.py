"""The commands that look into a real model: ``joma probe`` and ``joma neurons``."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joma.cli.arguments import command_parser, numbers_of, parse, quiet_and_json, words_of
from joma.errors import InputError

if TYPE_CHECKING:
    import pandas

    from joma.experiments.base import Experiment

PROBE = "attention entropy, stable ranks, salience ... of a real model"
NEURONS = "pattern superposition: one neuron that answers to unrelated contexts"


def probe(words: list[str]) -> int:
    """``joma probe``."""
    parser = command_parser("probe", PROBE)
    parser.add_argument(
        "model", help="a folder, a .gguf file, or a name on the Hugging Face hub (id@revision)"
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument(
        "--text", help="run it on this: a text file, a table, a .npy of token ids, a named corpus"
    )
    what.add_argument("--weights", action="store_true", help="weights alone, shard by shard, no model built")
    parser.add_argument(
        "--out",
        default="",
        help="directory of the results (--weights: a Parquet file); empty: runs/probe-MODEL",
    )
    parser.add_argument("--overwrite", action="store_true", help="start over, whatever the directory holds")
    parser.add_argument("--attention", action="store_true", help="ranks of query, key, value, output too")
    parser.add_argument("--certify", action="store_true", help="with --weights: prove the error bounds")
    with_text = parser.add_argument_group("with --text")
    with_text.add_argument("--column", help="the table's column that holds the texts")
    with_text.add_argument("--tokenizer", help="name or folder of a tokenizer, in place of the model's own")
    with_text.add_argument("--length", type=int, help="tokens of a window (512, or the model's positions)")
    with_text.add_argument("--tokens", type=int, help="tokens to read, in whole windows (about 8192)")
    with_text.add_argument("--batch-tokens", type=int, default=2048, help="tokens of a batch (2048)")
    with_text.add_argument("--sections", help="of attention,ranks,coherence,joint_dynamics,salience (all)")
    with_text.add_argument("--statistics", help="of the attention: entropy,renyi_2,self_mass, ...")
    with_text.add_argument("--layers", help="numbers of the layers: 0,5,11 (all)")
    with_text.add_argument("--heads", help="numbers of the heads (all)")
    with_text.add_argument("--rows", type=float, help="share of the attention's rows to measure: 0.125 (all)")
    with_text.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:1")
    with_text.add_argument("--dtype", help="float32, bfloat16 or float16 (float32 on a CPU)")
    quiet_and_json(parser)
    options = parse(parser, words)
    return _probe_weights(options) if options.weights else _probe_text(options)


def _probe_text(options: argparse.Namespace) -> int:
    if options.certify:
        raise InputError("joma probe: --certify goes with --weights.")
    from joma.instruments.probe import ProbeRun
    from joma.reporting.probe_text import probe_as_text

    run = ProbeRun(
        **_text_settings(options),
        sections=words_of(options.sections),
        statistics=words_of(options.statistics),
        heads=numbers_of("--heads", options.heads),
        rows=options.rows,
        attention_matrices=options.attention,
    )
    return _on_text("probe", run, options, probe_as_text)


def neurons(words: list[str]) -> int:
    """``joma neurons``."""
    parser = command_parser("neurons", NEURONS + ", as in JoMA Fig. 10")
    parser.add_argument(
        "model", help="a folder, a .gguf file, or a name on the Hugging Face hub (id@revision)"
    )
    parser.add_argument(
        "--text", required=True, help="a text file, a table, a .npy of token ids, a named corpus"
    )
    parser.add_argument("--out", default="", help="directory of the results (empty: runs/neurons-MODEL)")
    parser.add_argument("--overwrite", action="store_true", help="start over, whatever the directory holds")
    parser.add_argument("--column", help="the table's column that holds the texts")
    parser.add_argument("--tokenizer", help="name or folder of a tokenizer, in place of the model's own")
    parser.add_argument("--length", type=int, default=128, help="tokens of a window (128)")
    parser.add_argument("--tokens", type=int, help="tokens to read, in whole windows (about 50000)")
    parser.add_argument("--batch-tokens", type=int, default=1024, help="tokens of a batch (1024)")
    parser.add_argument("--layers", help="numbers of the layers: 0,5,11 (all)")
    parser.add_argument("--neurons", help="numbers of the neurons in each layer: 7,300 (all)")
    parser.add_argument("--top", type=int, default=16, help="contexts kept for each neuron (16)")
    parser.add_argument("--smallest", type=int, default=3, help="contexts that make a pattern (3)")
    parser.add_argument("--show", type=int, default=24, help="neurons whose contexts are written out (24)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the nulls")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:1")
    parser.add_argument("--dtype", help="float32, bfloat16 or float16 (float32 on a CPU)")
    quiet_and_json(parser)
    options = parse(parser, words)

    from joma.instruments.neurons import NeuronsRun, neurons_as_text

    run = NeuronsRun(
        **_text_settings(options),
        neurons=numbers_of("--neurons", options.neurons),
        top=options.top,
        smallest=options.smallest,
        show=options.show,
        seed=options.seed,
    )
    return _on_text("neurons", run, options, neurons_as_text)


def _text_settings(options: argparse.Namespace) -> dict[str, Any]:
    """The settings that every command has which runs a model on a text."""
    plain = ("model", "text", "column", "tokenizer", "length", "tokens", "batch_tokens", "device", "dtype")
    return {name: getattr(options, name) for name in plain} | {
        "layers": numbers_of("--layers", options.layers)
    }


def _on_text(
    command: str,
    run: Experiment,
    options: argparse.Namespace,
    as_text: Callable[[Mapping[str, pandas.DataFrame]], str],
) -> int:
    """Run a model on a text into a directory, with its report, and say what was found."""
    from joma.reporting.page import write_report
    from joma.reporting.terminal import run_as_text
    from joma.runs.directory import run_experiment

    slug = re.sub(r"[^\w.-]+", "-", options.model).strip("-.")
    directory = Path(options.out or f"runs/{command}-{slug}")
    done = run_experiment(run, directory, overwrite=options.overwrite, quiet=options.quiet)
    page = write_report([done], directory / "report.html")
    if options.json:
        tables = {
            name: json.loads(table.to_json(orient="records", double_precision=15))
            for name, table in done.tables.items()
        }
        claims = [claim.as_dict() for claim in done.claims]
        print(json.dumps({"directory": str(directory), "tables": tables, "claims": claims}, indent=1))
    else:
        print(as_text(done.tables))
        print(run_as_text(done))
        print(f"{page}")
    return 0


def _probe_weights(options: argparse.Namespace) -> int:
    from joma.files import whole_file
    from joma.probes.reading.loading import resolve
    from joma.probes.weights.ranks import probe_weights
    from joma.progress import Progress

    table = probe_weights(
        resolve(options.model),
        attention=options.attention,
        certify=options.certify,
        progress=Progress(quiet=options.quiet),
    )
    if options.out:
        with whole_file(Path(options.out)) as temporary:
            table.to_parquet(temporary, index=False)
    if options.json:
        print(table.to_json(orient="records", indent=1, double_precision=15))
    else:
        shown = [column for column in ("stack", "expert") if table[column].astype(bool).any()]
        columns = ["layer", *shown, "matrix", "metric", "value", "error_bound", "rows", "columns"]
        print(table[columns].to_string(index=False, float_format=lambda value: f"{value:.6g}"))
    return 0
