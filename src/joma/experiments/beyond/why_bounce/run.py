"""Trainings, their branches, and the tables of what each did."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, partial

import pandas as pd

from joma.core.progress import Progress
from joma.experiments.beyond.why_bounce import LAST, WhyBounce
from joma.experiments.beyond.why_bounce.forces import Forces
from joma.experiments.beyond.why_bounce.held_out import FREQUENCIES, HeldOutWindows
from joma.experiments.beyond.why_bounce.mechanisms import Stages
from joma.experiments.beyond.why_bounce.sets import (
    EMBEDDINGS,
    LOWER,
    MLP,
    QUERIES_KEYS,
    UPPER,
    parameter_sets,
)
from joma.experiments.beyond.why_bounce.training import Decoders, train_twin
from joma.experiments.shared.decoder_settings import run_name
from joma.experiments.shared.decoders import read_text
from joma.experiments.shared.tables import Rows, by_table
from joma.instruments.branch import TWIN
from joma.instruments.branch.interventions import Intervention
from joma.instruments.branch.training import State
from joma.measures.bounce import smooth

ORDER = "twin, other order"
HELD, FORWARD, FORBIDDEN, SLOW = "held at the dip", "brought forward", "dip forbidden", "a tenth of the rate"
ALL_ELSE = "all else than {}"


def run(settings: WhyBounce, progress: Progress) -> dict[str, pd.DataFrame]:
    """One part a decoder."""
    read_text(settings)
    progress.note_device("cpu", "float32")
    parts = progress.parts(
        {run_name(*cell): partial(_one_decoder, settings, *cell) for cell in settings.trainings()}
    )
    return by_table([parts[name] for name in sorted(parts)], counted=("depth", "seed", "step"))


def _one_decoder(settings: WhyBounce, depth: int, seed: int, progress: Progress) -> pd.DataFrame:
    decoders = Decoders(settings, read_text(settings), depth, seed)
    held_out = HeldOutWindows(settings, decoders.text)
    twin, forces, states = train_twin(decoders, held_out)
    found = TrainedDecoder(decoders, held_out, twin, states)
    rows = [
        *found.of_bounce(forces),
        *found.of_exchanges(),
        *found.of_forces(forces),
        *found.of_mechanisms(),
        *found.of_branches(progress),
    ]
    return pd.DataFrame(rows).assign(depth=depth, seed=seed)


@dataclass(frozen=True)
class TrainedDecoder:
    """One decoder whose twin was trained."""

    decoders: Decoders
    held_out: HeldOutWindows
    twin: pd.DataFrame
    states: dict[int, State]

    @property
    def settings(self) -> WhyBounce:
        """Of the experiment."""
        return self.decoders.settings

    @cached_property
    def entropies(self) -> pd.Series[float]:
        """Step -> entropy of the twin."""
        own: pd.Series[float] = self.twin[self.twin["metric"] == "entropy"].set_index("step")["value"]
        return own

    @cached_property
    def last(self) -> tuple[int, ...]:
        """The steps that are the end."""
        return tuple(self.settings.measured_steps()[-LAST:])

    @cached_property
    def dip(self) -> int:
        """The step of the lowest smoothed entropy."""
        level = pd.Series(smooth(self.entropies.to_numpy(), 3), index=self.entropies.index)
        return int(level[self.settings.possible_dips()].idxmin())

    @cached_property
    def rise(self) -> float:
        """From the dip to the end, nats."""
        return float(self.entropies[[*self.last]].mean() - self.entropies[self.dip])

    def stages(self) -> Stages:
        """The states of dip and end."""
        return Stages(self.decoders.make()[0], self.held_out, self.states[self.dip], self.dip, self.last)

    def of_bounce(self, forces: Forces) -> Rows:
        """Dip, end, and how much of the rise the first order leaves over."""
        divided = sum(self._sum_of(forces, self.dip).values())
        found = {
            "dip_step": self.dip,
            "start": self.entropies.iloc[0],
            "dip": self.entropies[self.dip],
            "end": self.dip_to_end[1],
            "rise": self.rise,
            "residual": abs(divided - self.rise) / abs(self.rise),
            "residual_at_once": abs(self.stages().at_once() - self.rise) / abs(self.rise),
        }
        return [{"table": "bounces", "metric": metric, "value": float(v)} for metric, v in found.items()]

    @cached_property
    def dip_to_end(self) -> tuple[float, float]:
        """The entropies of dip and end, nats."""
        return float(self.entropies[self.dip]), float(self.entropies[[*self.last]].mean())

    def of_exchanges(self) -> Rows:
        """Sets put back from the end, and put forward from the end."""
        rows: Rows = []
        for name, lost, brought in self.stages().exchanges():
            rows += [
                {"table": "sets", "set": name, "way": "put back", "time": "dip", "value": lost},
                {"table": "sets", "set": name, "way": "brought", "time": "dip", "value": brought},
            ]
        return rows

    def of_forces(self, forces: Forces) -> Rows:
        """Nats by set, from the start to the dip and from the dip to the end."""
        falls = self._course(forces).loc[self.dip].to_dict()
        return [
            {"table": "forces", "set": str(name), "phase": phase, "value": float(value)}
            for phase, found in (("fall", falls), ("rise", self._sum_of(forces, self.dip)))
            for name, value in found.items()
        ]

    def _sum_of(self, forces: Forces, begin: int) -> dict[str, float]:
        """Set -> nats from a step to the end, which is a mean over the last measured steps."""
        course = self._course(forces)
        gained = course.loc[[*self.last]].mean() - course.loc[begin]
        return {str(name): float(value) for name, value in gained.items()}

    def _course(self, forces: Forces) -> pd.DataFrame:
        """Nats by set, from the start to each step at which they were divided."""
        course = pd.DataFrame(forces.changes).cumsum()
        course.index = (course.index + 1) * self.settings.divide_every
        return pd.concat([pd.DataFrame(0.0, [0], course.columns), course])

    def of_mechanisms(self) -> Rows:
        """The numbers of the predictions that need no branch."""
        stages = self.stages()
        scale, spread = stages.scale_share()
        lost, back = stages.mass_lost()
        found = {
            "scale": scale,
            "spread_of_logits": spread,
            "noise": stages.average_share(),
            "mass_lost": lost,
            "mass_lost_back": back,
        }
        by_step = self.twin.pivot(index="step", columns="metric", values="value")
        for name in FREQUENCIES:
            own = by_step[f"entropy, {name}"]
            found[f"rise_{name}"] = float(own[[*self.last]].mean() - own[self.dip])
        return [{"table": "mechanisms", "metric": metric, "value": v} for metric, v in found.items()]

    def of_branches(self, progress: Progress) -> Rows:
        """The entropy along every branch, its share of the rise, and the losses where entropy is changed."""
        curves = {TWIN: self.twin}
        label = f"{self.settings.name()}: {run_name(self.decoders.depth, self.decoders.seed)}"
        for name, at, way, order in progress.track(list(self._ways()), label):
            curves[name] = self.decoders.branch(self.held_out, self.states[at], at, way, order)
        rows: Rows = []
        for name, curve in curves.items():
            own = curve[curve["metric"] == "entropy"]
            rows += [
                {"table": "curves", "branch": name, "step": int(step), "value": float(value)}
                for step, value in zip(own["step"], own["value"], strict=True)
            ]
            rows += self._of_branch(name, curve)
        return rows

    def _of_branch(self, name: str, curve: pd.DataFrame) -> Rows:
        """A branch's share of the rise, or its losses less the twin's."""
        end = _end(curve, self.last)
        low, high = self.dip_to_end
        if name == TWIN:
            return []
        if name in (HELD, FORWARD, FORBIDDEN, ORDER):
            than = end - _end(self.twin, self.last)
            back = float(end["entropy"] - high) / self.rise
            losses: Rows = [
                {"table": "losses", "branch": name, "text": text, "tokens": tokens, "value": float(value)}
                for metric, value in than.items()
                for text, _, tokens in [str(metric).partition(", ")]
                if not text.startswith("entropy") and (name, text) != (ORDER, "training")  # other batches
            ]
            return [*losses, {"table": "mechanisms", "metric": f"entropy, {name}", "value": back}]
        set_name, _, time = name.partition("; ")
        all_else = set_name.startswith(ALL_ELSE.format(""))
        share = (end["entropy"] - low if all_else else high - end["entropy"]) / self.rise
        way = "all else frozen" if all_else else "slow" if set_name == SLOW else "frozen"
        set_name = set_name.removeprefix(ALL_ELSE.format(""))
        return [{"table": "sets", "set": set_name, "way": way, "time": time or "dip", "value": float(share)}]

    def _ways(self) -> Iterator[tuple[str, int, Intervention | None, int]]:
        """Name, step, intervention and order of every branch."""
        sets = parameter_sets(self.decoders.make()[0])
        frozen = {**sets, MLP: sets[LOWER] + sets[UPPER]}
        frozen.pop(UPPER)
        for time in self.settings.times:
            for name, patterns in frozen.items():
                yield f"{name}; {time}", self._step_at(time), Intervention(name, "freeze", patterns, 0.0), 0
        for name in (QUERIES_KEYS, EMBEDDINGS):
            others = tuple(one for other, some in sets.items() if other != name for one in some)
            yield ALL_ELSE.format(name), self.dip, Intervention(name, "freeze", others, 0.0), 0
        low, high = self.dip_to_end
        one_layer = self.decoders.depth == 1  # else every layer is held where it is
        held = Intervention(HELD, "hold-entropy", target=low if one_layer else None)
        yield SLOW, self.dip, Intervention(SLOW, "rate", ("*",), 0.1), 0
        yield HELD, self.dip, held, 0
        yield FORWARD, self.dip, Intervention(FORWARD, "hold-entropy", target=high), 0
        yield FORBIDDEN, self._before_crossing(), Intervention(FORBIDDEN, "entropy-floor", target=high), 0
        yield ORDER, self.dip, None, 1

    def _step_at(self, time: str) -> int:
        """A quarter of the way before or behind the dip, among the states that are kept."""
        wanted = {
            "before": 0.75 * self.dip,
            "dip": self.dip,
            "after": self.dip + 0.25 * (self.last[0] - self.dip),
        }
        return min(self.states, key=lambda step: (abs(step - wanted[time]), step))

    def _before_crossing(self) -> int:
        """The last kept step before the fall first goes below the end's entropy."""
        below = self.entropies[self.entropies < self.dip_to_end[1]].index
        first = int(below[0]) if len(below) else self.dip
        return max(step for step in self.states if step < max(first, 1))


def _end(curve: pd.DataFrame, last: tuple[int, ...]) -> pd.Series[float]:
    """Metric -> mean over the steps that are the end."""
    found: pd.Series[float] = curve[curve["step"].isin(last)].groupby("metric")["value"].mean()
    return found
