"""``joma completion``: a script with which a shell completes commands, experiments, options and presets."""

from __future__ import annotations

import contextlib
import io
import re
import shlex

from joma.checks.catalog import groups
from joma.cli.commands import COMMANDS
from joma.cli.words.options import CompletionOptions
from joma.core.errors import InputError
from joma.experiments import catalog

_LISTS = {
    "bash": r"""_joma() {
  local current="${COMP_WORDS[COMP_CWORD]}" previous="${COMP_WORDS[COMP_CWORD-1]}" key="" words
  (( COMP_CWORD > 1 )) && key="${COMP_WORDS[1]}"
  [[ "$key" =~ ^(run|sweep)$ ]] && (( COMP_CWORD > 2 )) && key="$key ${COMP_WORDS[2]}"
  words="$(_joma_words "$key $previous")"
  [[ -n "$words" ]] || words="$(_joma_words "$key")"
  COMPREPLY=($(compgen -W "$words" -- "$current"))
}
complete -o default -F _joma joma
""",
    "zsh": r"""_joma() {
  local previous="${words[CURRENT-1]}" key="" found
  (( CURRENT > 2 )) && key="${words[2]}"
  [[ "$key" == (run|sweep) ]] && (( CURRENT > 3 )) && key="$key ${words[3]}"
  found="$(_joma_words "$key $previous")"
  [[ -n "$found" ]] || found="$(_joma_words "$key")"
  compadd -- ${=found}
  _files
}
compdef _joma joma
""",
    "fish": r"""function __joma_complete
  set -l before (commandline -opc)
  set -l key ""
  test (count $before) -gt 1; and set key $before[2]
  if contains -- "$key" run sweep; and test (count $before) -gt 2
    set key "$key $before[3]"
  end
  set -l found (__joma_words "$key $before[-1]")
  test -n "$found"; or set found (__joma_words "$key")
  string split " " -- $found
end
complete -c joma -a '(__joma_complete)'
""",
}
"""What asks for the words of a key, by shell: of ``COMMAND`` or ``run NAME``, with or without an option."""


def do(options: CompletionOptions) -> int:
    """Print the script of a shell."""
    if options.shell not in _LISTS:
        raise InputError(f"completion: name a shell: {', '.join(_LISTS)}, as in: joma completion bash.")
    cases = _words()
    if options.shell == "fish":
        lines = [
            f"    case {shlex.quote(key)}\n      echo {shlex.quote(text)}" for key, text in cases.items()
        ]
        body = "function __joma_words\n  switch $argv[1]\n" + "\n".join(lines) + "\n  end\nend\n"
    else:
        lines = [f"    {shlex.quote(key)}) echo {shlex.quote(text)} ;;" for key, text in cases.items()]
        body = '_joma_words() {\n  case "$1" in\n' + "\n".join(lines) + "\n  esac\n}\n"
    print(body + _LISTS[options.shell], end="")
    return 0


def _words() -> dict[str, str]:
    """Key -> the words that may come next, separated by blanks."""
    found = {"": " ".join(COMMANDS), "completion": " ".join(_LISTS)}
    for command in COMMANDS:
        if command in ("run", "sweep"):
            found[command] = " ".join(catalog.names())
            for name in catalog.names():
                found[f"{command} {name}"] = _options(command, name)
                found[f"{command} {name} --preset"] = " ".join(catalog.find(name).presets)
        elif command != "completion":
            found[command] = _options(command)
    found["check"] = " ".join([*groups(), found["check"]])
    return found


def _options(*words: str) -> str:
    """The options that the help of a command shows."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        COMMANDS[words[0]](words[0], [*words[1:], "--help"])
    return " ".join(dict.fromkeys(re.findall(r"^  (--[\w-]+)", out.getvalue(), re.MULTILINE)))
