"""Arguments in: parsers whose errors are one line, and settings as people type them."""

from __future__ import annotations

import argparse
import difflib
import itertools
import re
from pathlib import Path
from typing import Any, NoReturn, get_type_hints

from joma.errors import InputError


class _Parser(argparse.ArgumentParser):
    """An argparse parser whose errors can be told in one line."""

    def error(self, message: str) -> NoReturn:
        raise argparse.ArgumentError(None, message)


def command_parser(command: str, description: str) -> argparse.ArgumentParser:
    """A parser of a command with a few plain options."""
    parser = _Parser(prog=f"joma {command}", description=description)
    return _with_debug(parser)


def settings_parser(command: str, description: str) -> argparse.ArgumentParser:
    """A parser that knows types, YAML files and lists; its import is most of ``joma --help``'s time."""
    from jsonargparse import ArgumentParser

    return _with_debug(ArgumentParser(prog=f"joma {command}", description=description, exit_on_error=False))


def _with_debug(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    return parser


def parse(parser: argparse.ArgumentParser, words: list[str]) -> Any:
    """The options; what cannot be understood is an :class:`InputError` of one line."""
    try:
        return parser.parse_args(words)
    except argparse.ArgumentError as error:
        message = one_line(str(error))
        if "nrecognized arguments" in message:
            options = [option for action in parser._actions for option in action.option_strings]
            unknown = message.partition("arguments:")[2].split()[0]
            near = difflib.get_close_matches(unknown.split("=")[0], options, n=1, cutoff=0.6)
            hint = f"did you mean {near[0]!r}?" if near else f"see: {parser.prog} --help"
            raise InputError(f"{parser.prog}: unknown argument {unknown!r}; {hint}") from error
        raise InputError(f"{parser.prog}: {_in_plain_words(message)} (see: {parser.prog} --help)") from error


def _in_plain_words(message: str) -> str:
    """``Parser key "steps": Expected a <class 'int'>. Got value: x`` -> ``--steps x: give an int``."""
    found = re.match(
        r'Parser key "(\w+)": .*?Expected a <class \'(\w+)\'>.*(?:Got|Given) value: (\S+)', message
    )
    if not found:
        return message
    or_none = " (or none)" if "NoneType" in message else ""
    return f"--{found[1]} {found[3]} is not of the type {found[2]}{or_none}"


def one_line(text: str) -> str:
    """The text with every white space made one blank."""
    return " ".join(text.split())


def quiet_and_json(parser: argparse.ArgumentParser) -> None:
    """Add the two options that most commands have."""
    parser.add_argument("--quiet", action="store_true", help="no progress on stderr")
    parser.add_argument("--json", action="store_true", help="machine-readable results on stdout")


def words_of(text: str | None) -> tuple[str, ...] | None:
    """``entropy,renyi_2`` as a tuple; None where the option was not given."""
    return None if text is None else tuple(word.strip() for word in text.split(",") if word.strip())


def numbers_of(option: str, text: str | None) -> tuple[int, ...] | None:
    """``0,5,11`` as a tuple; None where the option was not given."""
    words = words_of(text)
    if words is None:
        return None
    if not all(word.isdigit() for word in words):
        raise InputError(f"{option} {text} is no list of numbers; write {option} 0,5,11.")
    return tuple(int(word) for word in words)


def preset_of(words: list[str]) -> str:
    """The preset that the words, or else the configuration file, name; ``quick`` by default."""
    named = _option(words, "--preset")
    config = _option(words, "--config")
    if named is None and config is not None:
        import yaml

        from joma.data.corpora import read_text

        try:
            content = yaml.safe_load(read_text(Path(config)))
        except yaml.YAMLError as error:
            raise InputError(f"{config} is not YAML ({one_line(str(error))}).") from error
        if not isinstance(content, dict):
            raise InputError(f"{config} holds no settings; write lines of the form 'steps: 1000'.")
        named = content.get("preset")
    return "quick" if named is None else str(named)


def _option(words: list[str], option: str) -> str | None:
    for word, following in itertools.pairwise([*words, ""]):
        if word == option:
            return following
        if word.startswith(f"{option}="):
            return word.partition("=")[2]
    return None


def plain_words(experiment: type[Any], words: list[str]) -> list[str]:
    """Settings as people type them: dashes for underscores, ``1,2`` for lists, ``none`` for null."""
    types = get_type_hints(experiment)
    plain: list[str] = []
    for word in words:
        if word.startswith("--"):
            option, equals, value = word.partition("=")
            plain += [option.replace("-", "_").replace("__", "--", 1)] + ([value] if equals else [])
        else:
            plain.append(word)
    for i in range(1, len(plain)):
        kind = str(types.get(plain[i - 1].removeprefix("--"), ""))
        if "None" in kind and plain[i].lower() == "none":
            plain[i] = "null"
        if kind.startswith("tuple") and not plain[i].startswith(("[", "(", "--")):
            plain[i] = f"[{plain[i]}]"
    return plain


def frozen(value: Any) -> Any:
    """Lists as the tuples that settings hold."""
    return tuple(value) if isinstance(value, list) else value
