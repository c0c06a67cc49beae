"""What JoMA Table 1 and its text say, each judged from the tables of ``table1``."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
from scipy.stats import ttest_1samp

from joma.core.claim import Claim, above, at_least, at_most, below, statements
from joma.core.tables import rows
from joma.experiments.joma_paper.table1 import CELL, Table1
from joma.experiments.joma_paper.table1.readings import OPTIONS, plain

HIGH = 0.9
SIGNIFICANT = 0.05
SOURCE = "JoMA Table 1, Sec. 6"
QUOTED = "for C = 20, N_ch = 2, (10, 20) the paper has 0.99 +- 0.01 at s = 0 and 0.81 +- 0.05 at s = 1"
UNTRAINED = "the untrained network"

STATEMENTS = statements(
    {
        "table1.complexity": f"{SOURCE} | with more latents per level the correlation goes down a bit",
        "table1.peaks_early": "not in the paper | alignment at s = 1 peaks during training and has fallen "
        "at its end",
        "table1.paper": "JoMA Table 1 | the correlations of Table 1, each mean +- deviation over 5 seeds",
        "table1.readings": "JoMA Table 1, the readings of its sentence | some reading of NCorr, the same in "
        "every cell, gives the numbers of s = 1",
        "table1.bottom_high": f"{SOURCE} | in the lowest layer, every latent has a hidden neuron of high "
        "normalised correlation, higher than before training",
        "table1.bottom_above_top": f"{SOURCE} | the correlation is highest in the lowest layer, more so than "
        "before training",
        "table1.above_shuffled": f"{SOURCE} | at s = 1 neurons correlate with the latents more than the "
        "best of so many would by chance, more so than before training",
        "table1.learned_s{layer}": f"{SOURCE} (implied: 'in the learned models') | the alignment of layer "
        f"{{layer}} with the latents of s = {{layer}} is learned",
    }
)


def claims(settings: Table1, tables: Mapping[str, pd.DataFrame]) -> list[Claim]:
    """What Table 1 and its text say, each beside the untrained network."""
    ends = Ends(tables["alignment"], settings.steps)
    return [
        _bottom_high(ends),
        _judge_learning(ends, 0),
        _judge_learning(ends, 1),
        _bottom_above_top(ends),
        _above_shuffled(ends),
        _falls_when_complex(ends),
        _peaks_early(tables["alignment"]),
        _agrees_with_paper(ends, tables["paper"], full_scale=_is_full_scale(settings)),
        _some_reading_agrees(tables["readings"], full_scale=_is_full_scale(settings)),
    ]


def _is_full_scale(settings: Table1) -> bool:
    return settings.width == 1024 and settings.steps >= 10_000


class Ends:
    """Values at the first and the last step, one number per run, indexed by cell and seed."""

    def __init__(self, alignment: pd.DataFrame, steps: int) -> None:
        self.alignment = alignment
        self.steps = steps

    def of(self, layer: int, *, trained: bool, metric: str = "NCorr") -> pd.Series:
        """``metric`` of ``layer``, after training or before."""
        table = self.alignment
        step = self.steps if trained else 0
        chosen = rows(table, layer=layer, metric=metric, step=step)
        return chosen.set_index([*CELL, "seed"])["value"].sort_index()

    def cell_means(self, layer: int, *, trained: bool) -> pd.Series:
        """Mean over seeds of NCorr, by cell."""
        return self.of(layer, trained=trained).groupby(CELL).mean()


def _bottom_high(ends: Ends) -> Claim:
    trained, untrained = ends.cell_means(0, trained=True), ends.cell_means(0, trained=False)
    return STATEMENTS["table1.bottom_high"].judge(
        at_least(HIGH, trained, of="NCorr at s = 0", across="in every cell")
        & above(untrained, trained, of="NCorr at s = 0", than=f"that of {UNTRAINED}", across="in every cell"),
        null=untrained.min(),
        null_description=f"{UNTRAINED}: a null as high says that this is not learning",
        evidence=f"smallest of {len(trained)} cell means; {QUOTED}",
    )


def _judge_learning(ends: Ends, layer: int) -> Claim:
    """Training raises NCorr, and by more than it raises what shuffled classes give.

    Trained neurons are more alike to indicators of any set of classes, so the shuffled NCorr rises too.
    """
    trained, untrained = ends.of(layer, trained=True), ends.of(layer, trained=False)
    gain = trained - untrained
    statement = STATEMENTS["table1.learned_s{layer}"].fill(layer=layer)
    if len(gain) < 2:
        values = f"NCorr {untrained.iloc[0]:.3f} untrained, {trained.iloc[0]:.3f} trained"
        return statement.not_tested(f"one run cannot tell a rise from chance ({values})")
    shuffled = ends.of(layer, trained=True, metric="shuffled") - ends.of(
        layer, trained=False, metric="shuffled"
    )
    p_gain, p_excess = (
        float(ttest_1samp(x, 0, alternative="greater").pvalue) if x.std() > 0 else 1.0
        for x in (gain, gain - shuffled)
    )
    return statement.judge(
        below(SIGNIFICANT, p_gain, of="p of the rise over the same untrained network")
        & below(SIGNIFICANT, p_excess, of="p of the rise over that with shuffled classes"),
        measured=gain.mean(),
        null=shuffled.mean(),
        null_description="rise of the same number with the classes shuffled",
        evidence=f"mean of {len(gain)} runs ({untrained.mean():.3f} untrained, {trained.mean():.3f} "
        f"trained); paired t tests p = {p_gain:.2g} and {p_excess:.2g}",
    )


def _bottom_above_top(ends: Ends) -> Claim:
    gap = ends.cell_means(0, trained=True) - ends.cell_means(1, trained=True)
    before = ends.cell_means(0, trained=False) - ends.cell_means(1, trained=False)
    return STATEMENTS["table1.bottom_above_top"].judge(
        above(0, gap, of="NCorr at s = 0 less that at s = 1", across="in every cell")
        & above(
            before,
            gap,
            of="NCorr at s = 0 less that at s = 1",
            than=f"that in {UNTRAINED}",
            across="in every cell",
        ),
        null=before.min(),
        null_description=f"the same difference in {UNTRAINED}",
        evidence=f"smallest of {len(gap)} cells{_not_learned(gap.min(), before.min())}",
    )


def _not_learned(trained: float, untrained: float) -> str:
    return "; it is none of learning" if untrained >= trained else ""


def _above_shuffled(ends: Ends) -> Claim:
    excess = ends.of(1, trained=True) - ends.of(1, trained=True, metric="shuffled, 95 %")
    before = ends.of(1, trained=False) - ends.of(1, trained=False, metric="shuffled, 95 %")
    return STATEMENTS["table1.above_shuffled"].judge(
        above(0, excess, of="NCorr less what 1 in 20 shuffles of the classes exceeds", across="in every run")
        & above(
            before,
            excess,
            of="NCorr less what 1 in 20 shuffles of the classes exceeds",
            than=f"that of {UNTRAINED}",
            across="in every run",
        ),
        null=before.min(),
        null_description=f"the same excess in {UNTRAINED}",
        evidence=f"smallest of {len(excess)} runs; the shuffles alone have "
        f"{ends.of(1, trained=True, metric='shuffled').mean():.3f}{_not_learned(excess.min(), before.min())}",
    )


def _falls_when_complex(ends: Ends) -> Claim:
    statement = STATEMENTS["table1.complexity"]
    drops: list[float] = []
    before: list[float] = []
    for trained, found in ((True, drops), (False, before)):
        for layer in (0, 1):
            means = ends.cell_means(layer, trained=trained).reset_index()
            for _, cells in means.groupby(["classes", "children"]):
                ordered = cells.sort_values(["latents_s0", "latents_s1"])["value"].to_numpy()
                if len(ordered) > 1:
                    found.append(float(ordered[0] - ordered[-1]))
    if not drops:
        return statement.not_tested("cells of one size of latents only were trained")
    return statement.judge(
        above(
            0,
            drops,
            of="NCorr with the fewest latents less that with the most, all else equal,",
            across="at both levels",
        ),
        null=min(before),
        null_description=f"the same difference in {UNTRAINED}",
        evidence=f"smallest of {len(drops)} differences of cell means, mean {sum(drops) / len(drops):.3f}",
    )


def _peaks_early(alignment: pd.DataFrame) -> Claim:
    """Not in the paper: what a number at the end of training hides."""
    statement = STATEMENTS["table1.peaks_early"]
    chosen = rows(alignment, layer=1, metric=["NCorr", "shuffled"])
    wide = chosen.pivot_table(index=[*CELL, "seed"], columns=["metric", "step"], values="value")
    curve, by_chance = wide["NCorr"].mean(), wide["shuffled"].mean()
    if len(curve) < 3:
        return statement.not_tested("fewer than three measurements along training")
    fall, null = (
        w[c.idxmax()] - w[c.index[-1]] for w, c in ((wide["NCorr"], curve), (wide["shuffled"], by_chance))
    )
    means = (
        f"mean curve: {curve.iloc[0]:.3f} untrained, {curve.max():.3f} at step {curve.idxmax()}, "
        f"{curve.iloc[-1]:.3f} at the end"
    )
    if len(fall) < 2:
        return statement.not_tested(f"one run has no error to judge by ({means})")
    error = float(fall.std() / len(fall) ** 0.5)
    peak, last = curve.idxmax(), curve.index[-1]
    return statement.judge(
        above(2 * error, fall.mean(), of="fall from the peak", than="two standard errors")
        & above(0, peak, of="step of the peak")
        & below(last, peak, of="step of the peak", than="the last one"),
        null=null.mean(),
        null_description="the same fall, from its own peak, with the classes shuffled",
        evidence=means,
    )


def _agrees_with_paper(ends: Ends, paper: pd.DataFrame, *, full_scale: bool) -> Claim:
    statement = STATEMENTS["table1.paper"]
    if not full_scale:
        return statement.not_tested(f"below the paper's scale (d = 1024, 10,000 steps), where {QUOTED}")
    worst, worst_null, outside, cells = 0.0, 0.0, 0, 0
    for layer in (0, 1):
        theirs = rows(paper, layer=layer).set_index(CELL)
        trained, untrained = ends.of(layer, trained=True), ends.cell_means(layer, trained=False)
        for cell, values in trained.groupby(CELL):
            if cell not in theirs.index:
                continue
            row = theirs.loc[cell]
            deviation = _combined_deviation(row["deviation"], values.std() if len(values) > 1 else 0.0)
            distance = abs(float(values.mean()) - row["value"]) / deviation
            worst, cells, outside = max(worst, distance), cells + 1, outside + (distance > 2)
            worst_null = max(worst_null, abs(float(untrained[cell]) - row["value"]) / deviation)
    if not cells:
        return statement.not_tested("none of the table's cells was trained")
    return statement.judge(
        at_most(2, worst, of="distance", across="in every cell", unit="combined deviations"),
        null=worst_null,
        null_description=f"the same distance for {UNTRAINED}",
        evidence=f"largest distance; {outside} of {cells} numbers lie outside",
    )


def _some_reading_agrees(readings: pd.DataFrame, *, full_scale: bool) -> Claim:
    """Not in the paper: whether the choice of what its sentence leaves open explains its numbers."""
    statement = STATEMENTS["table1.readings"]
    if not full_scale:
        return statement.not_tested(f"below the paper's scale (d = 1024, 10,000 steps), where {QUOTED}")
    top = rows(readings, level=1, layer=1).dropna(subset="paper")
    if top.empty:
        return statement.not_tested("none of the table's cells was trained")
    deviation = _combined_deviation(top["paper_deviation"], top["deviation"].fillna(0.0))
    choices = list(OPTIONS)
    distances = {
        when: ((top[when] - top["paper"]).abs() / deviation).groupby([top[c] for c in choices]).max()
        for when in ("trained", "untrained")
    }
    best = dict(zip(choices, distances["trained"].idxmin(), strict=True))
    of_best, of_plain = top[plain(top, **best)], top[plain(top)]
    named = ", ".join(f"{name}: {value}" for name, value in best.items())
    return statement.judge(
        at_most(
            2,
            distances["trained"].min(),
            of="distance of the best reading",
            across="in every cell",
            unit="combined deviations",
        ),
        null=distances["untrained"].min(),
        null_description=f"the best reading's distance for {UNTRAINED}",
        evidence=f"largest distance over {len(of_best)} cells, smallest over {len(distances['trained'])} "
        f"readings, that of ({named}); its mean {of_best['trained'].mean():.3f} trained and "
        f"{of_best['untrained'].mean():.3f} untrained, the plain reading's {of_plain['trained'].mean():.3f} "
        f"and {of_plain['untrained'].mean():.3f}, the paper's {of_best['paper'].mean():.3f}; a null as near "
        "says that the number is not learning",
    )


def _combined_deviation(theirs: float | pd.Series, ours: float | pd.Series) -> float | pd.Series:
    """Table 1 prints two decimals: half a unit of the last, as a uniform error."""
    return (theirs**2 + ours**2 + 0.01**2 / 12) ** 0.5
