"""Formulas of the site as MathML, set when the site is built: LaTeX, and the plain notation of docstrings.

The plain notation is the one that a terminal shows: ``v_kl^2 / 2``, ``sum_k v_k``, ``int_0^r f(x) dx``, names of
Greek letters, ``sqrt(c)``, a prime for a derivative. A line that is no formula is left as it is.
"""

from __future__ import annotations

import re
from functools import cache

from latex2mathml.converter import convert

_GREEK = (
    "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi pi rho sigma tau phi chi psi omega "
    "Gamma Delta Theta Lambda Xi Pi Sigma Phi Psi Omega"
).split()
_FUNCTIONS = ("exp", "ln", "log", "max", "min", "sup", "lim", "cos", "sin", "det")
_NAMES = {
    **{name: f"\\{name} " for name in _GREEK},
    **{name: f"\\{name} " for name in _FUNCTIONS},
    **{name: rf"\operatorname{{{name}}}" for name in ("erf", "erfinv", "corr", "sign", "softmax", "diag")},
    "sum": r"\sum ", "int": r"\int ", "prod": r"\prod ", "perp": r"\perp ", "inf": r"\infty ", "o": r"\odot ",
    "iff": r"\iff ",
}  # fmt: skip
_LARGE = ("sum", "int", "prod")
_OPERATORS = {
    "<=": r"\le ", ">=": r"\ge ", "!=": r"\ne ", ":=": r"\mathrel{:=}", "->": r"\to ", "<<": r"\ll ", ">>": r"\gg ",
    "~": r"\sim ", "*": r"\ast ", ".": r"\cdot ", "<": "<", ">": ">", "=": "=", "+": "+", "-": "-", ",": ",",
    ";": ";", ":": ":", "!": "!",
}  # fmt: skip
_TOKEN = re.compile(
    r"(?P<space>\s+)|(?P<number>\d+(?:\.\d+)?|\.\d+)|(?P<mean><(?P<inner>[A-Za-z]+)>)|(?P<name>[A-Za-z]+)"
    r"|(?P<operator><=|>=|!=|:=|->|<<|>>|[-+=~*.<>,;:!/^_'(){}\[\]|])"
)
_FORMULA = re.compile(r"=|<=|>=| < | > |\^| ~ ")
_EQUATION = re.compile(r"\s+\((?P<tag>(?:Eq|Lemma|Thm|Theorem|App)\.? [^()]*)\)\s*$")
_CLOSE = {"(": ")", "[": "]", "{": "}", "|": "|"}


class NoFormulaError(ValueError):
    """What stands there is no formula of the plain notation."""


class _Reader:
    """One formula, from left to right."""

    def __init__(self, text: str) -> None:
        self.tokens: list[tuple[str, str]] = []
        at = 0
        while at < len(text):
            match = _TOKEN.match(text, at)
            if match is None:
                raise NoFormulaError(text[at:])
            kind = str(match.lastgroup) if match.lastgroup != "inner" else "mean"
            self.tokens.append((kind, match["inner"] if kind == "mean" else match[0]))
            at = match.end()
        self.at = 0
        self.conditions = [False]
        """Of each open bracket: whether its one bar means "given"."""

    def peek(self, ahead: int = 0) -> tuple[str, str]:
        place = self.at + ahead
        return self.tokens[place] if place < len(self.tokens) else ("end", "")

    def next(self) -> tuple[str, str]:
        token = self.peek()
        self.at += 1
        return token

    def sequence(self, until: str = "") -> list[str]:
        """Units up to the closing sign, fractions made of those around a slash."""
        units: list[str] = []
        while True:
            kind, text = self.peek()
            if kind == "end":
                if until:
                    raise NoFormulaError(f"no {until}")
                return units
            if text == until and kind == "operator":
                self.next()
                return units
            if kind == "space":
                self.next()
                if len(text) > 2:
                    units.append(r"\quad ")
            elif text == "/":
                self.next()
                self._fraction(units)
            else:
                units.append(self.unit())

    def _fraction(self, units: list[str]) -> None:
        while self.peek()[0] == "space":
            self.next()
        if not units or self.peek()[1] in _LARGE or self.peek()[0] == "end":
            units.append("/")
            return
        below = self.unit()
        since = 1
        if re.match(r"d(\w|\\)", below) and "d" in units:  # d ln f / dB
            since = units[::-1].index("d") + 1
        above = "".join(units[-since:])
        del units[-since:]
        units.append(rf"\frac{{{_bare(above)}}}{{{_bare(below)}}}")

    def unit(self) -> str:
        """A sign with its scripts, primes and arguments."""
        kind, text = self.next()
        if kind == "number":
            shown = text
            if self.peek() == ("name", "F"):  # a hypergeometric function
                self.next()
                shown = rf"{{}}_{{{text}}}F"
                if self.peek()[0] == "number":
                    shown += rf"_{{{self.next()[1]}}}"
        elif kind == "mean":
            shown = rf"\langle {_name(text)} \rangle "
        elif kind == "name":
            shown = self._named(text)
        elif text == "|" and self.conditions[-1]:
            return r"\mid "
        elif text in _CLOSE:
            shown = self._group(text)
        elif text in _OPERATORS:
            return _OPERATORS[text]
        else:
            raise NoFormulaError(text)
        return self._scripts(shown, kind == "name")

    def _group(self, opening: str) -> str:
        self.conditions.append(opening != "|" and self._bars(_CLOSE[opening]) == 1)
        inner = "".join(self.sequence(_CLOSE[opening]))
        self.conditions.pop()
        if opening == "{":
            return rf"\{{{inner}\}}"
        closing = _CLOSE[opening]
        return rf"\left{opening}{inner}\right{closing} "

    def _bars(self, closing: str) -> int:
        """How many bars stand right in the bracket that has just been opened."""
        depth = bars = 0
        for _, text in self.tokens[self.at :]:
            if depth == 0 and text == closing:
                break
            depth += (text in ("(", "[", "{")) - (text in (")", "]", "}"))
            bars += text == "|" and depth == 0
        return bars

    def _named(self, text: str) -> str:
        if text == "sqrt":
            while self.peek()[0] == "space":
                self.next()
            return rf"\sqrt{{{_bare(self.unit())}}}"
        words = [text]
        while text not in _NAMES and len(text) > 2 and self._is_word(text):
            if self.peek()[0] != "space" or self.peek(1)[0] != "name" or not self._is_word(self.peek(1)[1]):
                break
            self.next()
            text = self.next()[1]
            words.append(text)
        return rf"\text{{ {' '.join(words)} }}" if len(words) > 1 else _name(words[0])

    @staticmethod
    def _is_word(text: str) -> bool:
        return text not in _NAMES and text != "sqrt" and text.islower() and len(text) > 1

    def _scripts(self, shown: str, is_name: bool = False) -> str:
        low = high = primes = ""
        while True:
            kind, text = self.peek()
            if kind == "number" and is_name and not (low or high or primes):
                self.next()
                low += text
                continue
            if kind != "operator":
                break
            if text == "'":
                self.next()
                primes += "'"
            elif text == "~" and self.peek(1)[1] == "_":
                self.next()
                shown = rf"\tilde{{{shown}}}"
            elif text == "*" and self.peek(1)[0] in ("end", "operator"):
                self.next()
                high += r"\ast "
            elif text in "_^" and text:
                self.next()
                if text == "_":
                    low += self._script()
                else:
                    high += self._script()
            elif text in ("(", "[") and is_name:
                self.next()
                return self._scripts(_with_scripts(shown, primes, low, high) + self._group(text))
            else:
                break
        return _with_scripts(shown, primes, low, high)

    def _script(self) -> str:
        kind, text = self.next()
        if text in ("{", "("):
            return "".join(self.sequence(_CLOSE[text]))
        if text in ("+", "-", "*"):
            following = self.peek()
            if text != "*" and following[0] in ("number", "name"):
                self.next()
                return text + _name(following[1])
            return r"\ast " if text == "*" else text
        if kind not in ("number", "name"):
            raise NoFormulaError(text)
        shown = _name(text, script=True)
        if self.peek() == ("operator", "'") and not self._is_left_side():
            self.next()
            shown += "'"
        return shown

    def _is_left_side(self) -> bool:
        """Whether a prime after a script is the whole unit's: of a derivative that an equation gives."""
        following = [text for kind, text in self.tokens[self.at + 1 : self.at + 3] if kind != "space"]
        return following[:1] == ["="]


def _with_scripts(shown: str, primes: str, low: str, high: str) -> str:
    return shown + primes + (f"_{{{low}}}" if low else "") + (f"^{{{high}}}" if high else "")


def _bare(unit: str) -> str:
    """A unit without its own round brackets."""
    match = re.fullmatch(r"\\left\((.*)\\right\) ", unit)
    return match[1] if match and match[1].count(r"\left(") == match[1].count(r"\right)") else unit


def _name(text: str, script: bool = False) -> str:
    if text in _NAMES:
        return _NAMES[text]
    if len(text) == 1:
        return text
    if text.endswith("bar") and len(text) == 4:
        return rf"\bar{{{text[0]}}}"
    if text[0] == "d" and (len(text) == 2 or text[1:] in _GREEK):
        return rf"d{_name(text[1:])}"
    if script or text.isupper():
        return text if text not in _NAMES else _NAMES[text]
    return rf"\text{{ {text} }}"


@cache
def to_latex(line: str) -> str:
    """A line of plain notation in LaTeX.

    Raises:
        NoFormulaError: it is none.
    """
    if not _FORMULA.search(line):
        raise NoFormulaError(line)
    tag = _EQUATION.search(line)
    body = line[: tag.start()] if tag else line
    end = re.search(r"[.,;]\s*$", body)
    latex = "".join(_Reader(body[: end.start()] if end else body).sequence())
    latex += end[0].strip() if end else ""
    return latex + (rf"\qquad \text{{({tag['tag']})}}" if tag else "")


@cache
def to_mathml(latex: str, display: bool = False) -> str:
    """A formula of LaTeX as MathML, which browsers set themselves."""
    return str(convert(latex, display="block" if display else "inline"))


def block_to_mathml(text: str) -> str | None:
    """A block of plain notation, line by line; None where one of its lines is no formula."""
    lines = [
        re.sub(r"\*+(\w+)\*+", r"\1", line.replace("**", "")) for line in text.splitlines() if line.strip()
    ]
    try:
        set_lines = [to_mathml(to_latex(line.strip()), True) for line in lines]
    except NoFormulaError:
        return None
    return "".join(f'<div class="formula">{line}</div>' for line in set_lines) if lines else None
