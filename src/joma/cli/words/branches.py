"""The words of ``joma branch``: a decoder, and what is done to its branches."""

from __future__ import annotations

from joma.cli.words.arguments import Grammar
from joma.cli.words.config import read_config
from joma.cli.words.options import JobCall, JobOptions, all_fields, divide_options
from joma.core.errors import InputError
from joma.instruments.branch import DecoderBranchSettings

EXAMPLE = (
    "joma branch --at 60 --steps 40 --interventions 'frozen: freeze queries-keys, flat: uniform-attention'"
)
_HELP = (
    "Interventions: none, freeze SETS, rewind SETS to STEP, rate FACTOR SETS, reset-optimizer, hold-entropy, "
    "entropy-floor NATS, entropy-ceiling NATS, uniform-attention, mean-attention, frozen-attention, "
    "attention-temperature T, text CORPUS, shuffle-text. Sets: queries-keys, values, lower-mlp, mlp, norms, "
    "embeddings, output, layer-0, ..., or names of parameters, in which * stands for any letters. Example: "
    f"{EXAMPLE}"
)


def read(command: str, summary: str, words: list[str]) -> JobCall | None:
    """A decoder with its branches; None where help was asked for, and shown."""
    kind = DecoderBranchSettings
    grammar = Grammar(command, summary, all_fields(JobOptions, kind), _HELP)
    given = grammar.values(words)
    if given is None:
        print(grammar.help({"out": "runs/branch"}), end="")
        return None
    options, settings = divide_options(JobOptions, {**read_config(given, kind), **given})
    job = kind.of(**settings)
    if not job.interventions:
        raise InputError(f"branch: name at least one intervention; for example: {EXAMPLE}")
    return JobCall(job, options)
