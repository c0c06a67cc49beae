"""``joma completion``: the scripts, loaded by the shells that are installed."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from command_line import called
from joma.cli.commands import COMMANDS
from joma.experiments import catalog

ASK = {
    "bash": '. {script}; COMP_WORDS=({words}); COMP_CWORD={last}; _joma; printf "%s\\n" "${{COMPREPLY[@]}}"',
    "zsh": "compdef() {{ :; }}; _files() {{ :; }}; compadd() {{ shift; print -l -- $@; }}; . {script}; "
    "words=({words}); CURRENT=$(({last} + 1)); _joma",
    "fish": "source {script}; complete -C {line}",
}


def complete(shell: str, folder: Path, *words: str) -> list[str]:
    """What the shell offers for the last of these words."""
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    script = folder / "script"
    if not script.exists():
        done = called(["completion", shell])
        assert (done.returncode, done.stderr) == (0, "")
        script.write_text(done.stdout)
    quoted = " ".join(f"'{word}'" for word in words)
    line = f"'{' '.join(words)}'"
    asked = ASK[shell].format(script=script, words=quoted, last=len(words) - 1, line=line)
    done = subprocess.run([shell, "-c", asked], capture_output=True, text=True, cwd=folder, check=True)
    assert not done.stderr
    offered = [row.partition("\t")[0] for row in done.stdout.splitlines()]
    return [word for word in offered if word.startswith(words[-1]) and word != script.name]


@pytest.mark.parametrize("shell", sorted(ASK))
def test_a_shell_completes_what_may_come_next(shell: str, tmp_path: Path) -> None:
    assert set(complete(shell, tmp_path, "joma", "")) == set(COMMANDS)
    assert set(complete(shell, tmp_path, "joma", "run", "fig")) == {
        name for name in catalog.names() if name.startswith("fig")
    }
    assert complete(shell, tmp_path, "joma", "run", "fig4", "--pre") == ["--preset"]
    assert set(complete(shell, tmp_path, "joma", "run", "fig4", "--preset", "")) == set(
        catalog.find("fig4").presets
    )
    assert complete(shell, tmp_path, "joma", "monitor", "--foll") == ["--follow"]
    assert "theorem2" in complete(shell, tmp_path, "joma", "check", "theor")


def test_a_shell_that_is_not_known() -> None:
    done = called(["completion", "tcsh"])
    assert done.returncode == 2
    assert done.stderr == "joma: completion: name a shell: bash, zsh, fish, as in: joma completion bash.\n"
