"""Words in, settings out: the command line as the dataclasses of settings say it."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NoReturn

from joma.core.errors import InputError, abbreviate, closest
from joma.core.settings import Field, Value, as_text

_HELP = ("-h", "--help")


class _Parser(argparse.ArgumentParser):
    """An argparse parser whose errors can be told in one line."""

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{self.prog.removeprefix('joma ')}: {message} (see: {self.prog} --help)")


@dataclass(frozen=True)
class Grammar:
    """The options of one command: fields of settings, in the order in which its help shows them."""

    command: str
    """``run fig6``"""
    description: str
    fields: Mapping[str, Field]
    cost: str = ""
    """What it costs, said below the options."""
    others: Callable[[str], str] | None = None
    """Of a setting that the command has not: who has it, as a sentence; empty where nobody has."""

    def values(self, words: Iterable[str]) -> dict[str, Value] | None:
        """What the words set; None where they ask for help.

        Options may be written with dashes or underscores, with ``=`` or a blank; a switch needs no value, and
        lists are written ``1,2`` or ``[1,2]``.

        Raises:
            InputError: an unknown option, a value of another type, an option without its value.
        """
        plain, wants_help = self._join_values(list(words))
        if wants_help:
            return None
        # Words without a name first: argparse takes those that belong together in one row alone.
        plain.sort(key=lambda word: word.startswith("-"))
        texts, unknown = self._parser().parse_known_args(plain)
        if unknown:
            first = next((word for word in unknown if word.startswith("-")), unknown[0])
            raise InputError(f"{self.command}: unknown argument {abbreviate(first)}; {self._near(first)}")
        return {name: self._value(self.fields[name], text) for name, text in vars(texts).items()}

    def help(self, defaults: Mapping[str, Value]) -> str:
        """The help text, with these defaults where they differ from the fields' own."""
        return self._parser(defaults).format_help()

    def _value(self, field: Field, text: str | list[str]) -> Value:
        if isinstance(text, list):
            return tuple(text)
        try:
            return field.from_text(text)
        except (ValueError, OverflowError):
            named = f"--{field.name.replace('_', '-')}"
            if len(text) > 60:
                text = f"{text[:40]}...{text[-10:]}"
            numbers = field.several and str not in field.kinds
            wanted = "not a list of numbers: 0,5,11" if numbers else f"not of the type {field.type_name()}"
            raise InputError(
                f"{self.command}: {named} {text} is {wanted} (see: joma {self.command} --help)"
            ) from None

    def _options(self) -> dict[str, Field]:
        found = {}
        for name, field in self.fields.items():
            if not field.positional:
                found[f"--{name.replace('_', '-')}"] = field
                if field.short:
                    found[field.short] = field
        return found

    def _join_values(self, words: list[str]) -> tuple[list[str], bool]:
        """Each option and its value as one word, ``--option=value``; and whether help was asked for."""
        options = self._options()
        plain: list[str] = []
        waiting = ""
        for word in words:
            option, equals, value = word.partition("=")
            if option.startswith("--"):
                option = option.replace("_", "-")
            field = options.get(option)
            if field is None and option.startswith("--no-"):
                switched = options.get(f"--{option[5:]}")
                if switched is not None and bool in switched.kinds and not equals:
                    option, field, equals, value = f"--{option[5:]}", switched, "=", "false"
            if word in _HELP:
                return [], True
            if field is not None:
                plain += (
                    [f"{waiting}=true"]
                    if waiting and bool in options[waiting].kinds
                    else [waiting] * bool(waiting)
                )
                waiting = "" if equals else option
                plain += [f"{option}={value}"] if equals else []
            elif waiting and not (bool in options[waiting].kinds and not _is_truth(options[waiting], word)):
                plain.append(f"{waiting}={word}")
                waiting = ""
            else:
                plain += [f"{waiting}=true", word] if waiting else [word]
                waiting = ""
        if waiting:
            plain.append(f"{waiting}=true" if bool in options[waiting].kinds else waiting)
        return plain, False

    def _near(self, word: str) -> str:
        option = word.split("=")[0]
        if self.others and (said := self.others(option.lstrip("-").replace("-", "_"))):
            return said
        near = closest(option, self._options())
        return f"did you mean {near!r}?" if near else f"see: joma {self.command} --help"

    def _parser(self, defaults: Mapping[str, Value] | None = None) -> argparse.ArgumentParser:
        parser = _Parser(
            prog=f"joma {self.command}",
            description=self.description,
            epilog=self.cost,
            argument_default=argparse.SUPPRESS,
            add_help=False,
            allow_abbrev=False,
        )
        for name, field in self.fields.items():
            text = _help(field, (defaults or {}).get(name, field.default))
            if field.positional:
                parser.add_argument(name, nargs="*" if field.several else "?", help=text)
            else:
                flags = [f"--{name.replace('_', '-')}", *([field.short] if field.short else [])]
                if bool in field.kinds and defaults is not None:  # for the eye: a switch needs no value
                    parser.add_argument(*flags, dest=name, action="store_true", help=text)
                    continue
                kind = next((kind for kind in field.kinds if kind is not type(None)), str)
                metavar = f"{kind.__name__.upper()}{',...' if field.several else ''}"
                parser.add_argument(*flags, dest=name, metavar=metavar, help=text)
        parser.add_argument(*_HELP, action="store_true", help="show this text and end")
        parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
        return parser


def _is_truth(field: Field, word: str) -> bool:
    try:
        field.from_text(word)
    except ValueError:
        return False
    return True


def _help(field: Field, default: Value) -> str:
    choices = f" ({', '.join(map(str, field.choices))})" if field.choices else ""
    said = "" if default in (None, "", False, ()) else f" (default: {as_text(default)})"
    return f"{field.help}{choices}{said}".replace("%", "%%")
