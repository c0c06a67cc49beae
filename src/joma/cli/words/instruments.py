"""The words of the commands on real models."""

from __future__ import annotations

from dataclasses import replace

from joma.cli.words.arguments import Grammar
from joma.cli.words.config import read_config
from joma.cli.words.options import InstrumentOptions, JobCall, TrackOptions, all_fields, divide_options
from joma.cli.words.piped import PIPED, piped_text
from joma.core.files import user_path
from joma.experiments.costs import TOKENS, all_measured, in_words
from joma.instruments.catalog import INSTRUMENTS

_COSTS = {
    "probe": "all sections on {tokens:,} tokens {probe}; --weights {weights}.",
    "track": "a checkpoint on {tokens:,} tokens {track}; --dry-run says it for yours.",
    "neurons": "{tokens:,} tokens, read by three untrained networks, too, {neurons}.",
    "sparsity": "some thirty passes forward and one backward over 512 tokens.",
}
_OPTIONS: dict[str, type[InstrumentOptions]] = {"track": TrackOptions}


def _cost(command: str) -> str:
    times = dict.fromkeys(("probe", "weights", "track", "neurons"), "unknown")
    times |= {name: in_words(seconds) for name, seconds in all_measured("instruments").items()}
    size = "It costs, with a model of 135 million parameters, in processor time, and more in proportion: "
    return size + _COSTS[command].format(tokens=TOKENS, **times)


def read(command: str, summary: str, words: list[str]) -> JobCall | None:
    """An instrument with its settings; None where help was asked for, and shown."""
    kind = INSTRUMENTS[command]
    options_of = _OPTIONS.get(command, InstrumentOptions)
    grammar = Grammar(command, summary, all_fields(options_of, kind), _cost(command))
    given = grammar.values(words)
    if given is None:
        print(grammar.help({"out": f"runs/{command}-MODEL"}), end="")
        return None
    options, settings = divide_options(options_of, given)
    # A switch that is an option (--audit) and a setting: turned off (--no-audit), it is the setting.
    off = {name: value for name, value in given.items() if value is False and name in options_of.fields()}
    settings |= {name: value for name, value in off.items() if name in kind.fields()}
    job = kind.of(**{**read_config(given, kind), **settings})
    job.check_complete()
    if job.reading.text == PIPED:
        text = piped_text(user_path(options.out or job.directory()))
        job = replace(job, reading=replace(job.reading, text=str(text)))
    return JobCall(job, options)
