"""The digest: what stands first in made runs with a planted fault or none; how often a finding is false."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import joma
import made_monitors
import made_series
import test_first_sentences as made
from joma.cli import main as cli
from joma.core.errors import InputError
from joma.instruments.monitor.health import findings
from joma.instruments.probe import ProbeSettings
from joma.instruments.probe.findings import findings as probe_findings
from joma.instruments.track import TrackSettings
from joma.instruments.track.measuring.faulty import COLUMNS
from joma.runs.finding import SCHEMA, Digest, Finding, digest_of
from joma.runs.result import JobResult

JUDGED_ON = (101, 102)
"""Seeds of the judged runs; weights and thresholds were chosen on seed 0, that of the first sentences."""
RIGHT_FIRST, FALSE = 0.80, 0.05
LOSS = ("loss", "loss")
PLANTED: dict[str, list[tuple[str, str]]] = {
    "healthy": [],
    "dead": [("attention_entropy", "all 12 heads"), LOSS],
    "diverged": [LOSS],
    "slow": [LOSS],
    "restarted": [LOSS],
    "blown up": [LOSS],
    "other text": [LOSS],
    "collapsing head": [("attention_entropy", "layer 1, head 2")],
    "large logit": [("largest_logit", "layer 2, head 0")],
    "large negative logits": [("largest_logit", "all 12 heads")],
    "dead layer": [("residual_update", "layer 1")],
    "not finite": [("residual_rms", "layer 2")],
    "sharpened": [("attention_entropy", "layer 0, head")],
    "bounces": [("stable_rank", "")],
    "falls": [("stable_rank", "")],
    "rests": [],
    "forms a circuit": [("attention_entropy", ""), ("stable_rank", "")],
    "collapses": [("stable_rank", "")],
    "diverges": [("loss", ""), ("stable_rank", "")],
    "learns": [("loss", "")],
}
"""Of each made run what is true of it, metric and place, the most serious first."""


def digest_of_made(name: str, seed: int) -> Digest:
    if name in made.TRACKED:
        tables = made_series.tables_of(made.TRACKED[name][0], seed)
        return digest_of(TrackSettings.of(model="run"), tables, [])
    course = made_monitors.healthy(made.LOOKS, seed)
    if (change := made.MONITORED[name][0]) is not None:
        change(course)
    table, messages, _ = made_monitors.judge(course)
    return Digest.of(name, findings(table, messages))


def fits(finding: Finding, planted: tuple[str, str]) -> bool:
    return finding.metric == planted[0] and finding.where.startswith(planted[1])


@pytest.mark.slow
def test_the_right_finding_stands_first_and_few_are_false() -> None:
    runs = [(name, seed) for name in PLANTED for seed in JUDGED_ON]
    assert len(runs) == 40
    right: list[tuple[str, int]] = []
    false: list[tuple[str, str]] = []
    count = 0
    for name, seed in runs:
        found = digest_of_made(name, seed).findings
        planted = PLANTED[name]
        count += len(found)
        false += [(name, one.sentence()) for one in found if not any(fits(one, true) for true in planted)]
        if (not found and not planted) or (found and planted and fits(found[0], planted[0])):
            right.append((name, seed))
    print(f"right finding first: {len(right)} of {len(runs)}; false: {len(false)} of {count} findings")
    assert len(right) >= RIGHT_FIRST * len(runs), sorted(set(runs) - set(right))
    assert len(false) <= FALSE * count, false


def probed(seed: int, planted: bool) -> dict[str, pd.DataFrame]:
    """Entropies of 12 layers of 8 heads and ranks of 12 matrices, like each other but for one of each."""
    random = np.random.default_rng(seed)
    entropies = 3 + 0.3 * random.standard_normal((12, 8)) + np.linspace(0, -1, 12)[:, None]
    ranks = 40 * np.exp(0.1 * random.standard_normal(12))
    if planted:
        entropies[5, 3], ranks[7] = 0.05, 1.5
    heads = pd.DataFrame(
        [
            {
                "layer": layer,
                "head": head,
                "module": f"m{layer}",
                "metric": "attention_entropy",
                "value": value,
            }
            for (layer, head), value in np.ndenumerate(entropies)
        ]
    )
    matrices = pd.DataFrame(
        {"layer": range(12), "matrix": "lower", "metric": "stable_rank", "value": ranks, "error_bound": 0.0}
    )
    layers = pd.DataFrame({"layer": range(12), "normalised": entropies.mean(axis=1) / 4})
    return {"attention": heads, "ranks": matrices, "layers": layers}


def test_a_head_and_a_matrix_that_stand_out_are_found_and_others_are_not() -> None:
    settings = ProbeSettings.of(model="m", text="t")
    found = [one for seed in range(100, 120) for one in probe_findings(settings, probed(seed, True))]
    heads = sum(one.where == "layer 5, head 3" and one.value == 0.05 for one in found)
    matrices = sum(one.where == "layer 7" and one.value == 1.5 for one in found)
    assert min(heads, matrices) >= RIGHT_FIRST * 20
    assert len(found) - heads - matrices <= FALSE * len(found)
    alike = [one for seed in range(200, 260) for one in probe_findings(settings, probed(seed, False))]
    assert len(alike) <= FALSE * 60


def conform(value: Any, schema: dict[str, Any]) -> bool:
    """Whether a value is as the part of JSON Schema that a digest's schema uses says."""
    kinds: dict[str, Any] = {"string": str, "number": (int, float), "integer": int, "null": type(None)}
    if "const" in schema:
        return bool(value == schema["const"])
    if schema["type"] == "object":
        own = schema["properties"]
        return set(value) == set(schema["required"]) == set(own) and all(
            conform(value[k], own[k]) for k in own
        )
    if schema["type"] == "array":
        return len(value) <= schema["maxItems"] and all(conform(one, schema["items"]) for one in value)
    named = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    return any(isinstance(value, kinds[kind]) for kind in named)


@pytest.mark.usefixtures("no_pictures")
def test_the_command_says_what_python_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    course = made_monitors.healthy(12)
    course.loss[:] = 3.0
    course.loss[100:] = np.nan
    course.entropy[:, 1, 2] = 0.02
    folder = made_monitors.write(course, tmp_path / "live" / "joma-monitor").parent
    assert cli.main(["digest", str(folder)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "Made, watched while it trained: 2 findings."
    assert lines[1].startswith("1. loss: the loss is nan (a value). Next: ")
    assert lines[2].startswith(
        "2. layer 1, head 2: attention is on one key (entropy 0.020 of log n) (a level"
    )
    assert cli.main(["digest", str(folder), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out, parse_constant=lambda word: pytest.fail(word))
    assert printed == joma.digest(folder).as_json()
    assert conform(printed, SCHEMA)
    assert printed["findings"][1]["value"] == pytest.approx(0.02)
    assert cli.main(["digest", "--schema"]) == 0
    assert json.loads(capsys.readouterr().out) == SCHEMA
    assert cli.main(["digest"]) == 2
    assert "name a run, a model or a series" in capsys.readouterr().err


def test_at_most_ten_the_weightiest_first() -> None:
    found = Digest.of("many", [Finding(what=f"{n}", weight=n, value=np.inf) for n in range(30)])
    assert [one.what for one in found.findings] == [str(n) for n in range(29, 19, -1)]
    assert conform(found.as_json(), SCHEMA)
    assert str(Digest.of("none", [])) == "none: nothing stands out."


def seeded(shift: float, seed: int, seeds: int = 5) -> JobResult:
    """A series' settings with a table of 20 metrics of these many seeds, the first of which is shifted."""
    random = np.random.default_rng(seed)
    rows = [
        {"seed": s, "step": step, "metric": f"m{m}", "value": random.normal() + (shift if m == 0 else 0)}
        for s in range(seeds)
        for step in (0, 10)
        for m in range(20)
    ]
    return Made(TrackSettings.of(model="run"), {"curves": pd.DataFrame(rows)})


class Made(JobResult):
    @property
    def claims(self) -> list[joma.Claim]:
        return []


def test_two_runs_differ_only_beyond_the_spread_of_their_seeds() -> None:
    assert [one.metric for one in joma.digest(seeded(0, 1), seeded(20, 2)).findings] == ["m0"]
    same = [joma.digest(seeded(0, 2 * n), seeded(0, 2 * n + 1)).findings for n in range(40)]
    assert sum(map(bool, same)) <= 5  # each with probability 1/20 or less: P(more) = 0.014
    (unknown,) = joma.digest(seeded(0, 1, seeds=2), seeded(20, 2)).findings
    assert "beyond the spread of seeds" in unknown.what
    other = JobResult(ProbeSettings.of(model="m", text="t"), {})
    with pytest.raises(InputError, match="track and probe are not of one kind"):
        joma.digest(seeded(0, 1), other)


def test_faulty_members_of_a_series_come_first() -> None:
    tables = made_series.tables_of(made.TRACKED["diverges"][0], 1)
    faults = pd.DataFrame(
        [("A", "checkpoint-20", 20, "same as another", ["a", "b"], "checkpoint-30")], columns=COLUMNS
    )
    first, second, *_ = digest_of(TrackSettings.of(model="run"), {**tables, "faults": faults}, []).findings
    assert (first.where, first.value, first.unit) == ("checkpoint-20", 2.0, "tensors")
    assert first.what == "same as another in 2 tensors"
    assert second.metric == "loss"
