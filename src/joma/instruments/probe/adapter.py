"""Did an adapter use its rank? Sentences, a table for the terminal, the figure (``joma probe ADAPTER``)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from joma.checkpoints.adapter_ranks import NOT_MEASURED
from joma.core.figures import PALETTE, panels
from joma.core.progress import Progress
from joma.core.tables import rows
from joma.instruments.probe import ProbeSettings
from joma.instruments.probe.probe import ProbeResult
from joma.instruments.reading.settings import ReadingSettings
from joma.measures.ranks.low_rank import RankSuggestion, suggest_rank

_SHOWN = (
    "rank_used",
    "effective_rank",
    "energy_share",
    "relative_change",
    "overlap_outputs",
    "overlap_inputs",
)
_LEGEND = {
    "rank": "directions given",
    "used": "directions that hold 99 % of the change's energy (random: a random adapter of the same shape)",
    "effective": "exp of the entropy of its singular values over their sum",
    "energy": "share of the energy of all changes (the squared Frobenius norms' sum)",
    "relative": "Frobenius norm of the change over that of the base's weight",
    "outputs": "share of the energy in the base's leading output directions, as many as the rank",
    "inputs": "the same of the input directions",
}


def probe_adapter(folder: str | Path, *, seed: int = 0, progress: Progress | None = None) -> ProbeResult:
    """Say how much of its rank an adapter used, where its change points, and which rank would have done.

    Each number stands beside that of random adapters of the same shape. Rank used: the directions that hold
    99 % of the change's energy (its squared Frobenius norm); Hu et al. 2021, Sec. 7, ask the same of LoRA.

    Args:
        folder: a folder that PEFT saved. The base model is looked for where its settings say.
        seed: of the random adapters.
        progress: shows a bar.

    Returns:
        ``found.table()`` has a row per module and metric, ``found.answer()`` a suggested rank with its
        reason.

    Raises:
        InputError: no adapter of low rank, or one that cannot be read.

    Examples:
        >>> factors = {"model.layers.0.mlp.up_proj.lora_A.weight": torch.eye(4, 6)}
        >>> up = torch.diag(torch.tensor([5.0, 3.0, 0.0, 0.0]))
        >>> factors["model.layers.0.mlp.up_proj.lora_B.weight"] = up
        >>> os.makedirs("adapter")
        >>> safetensors.torch.save_file(factors, "adapter/adapter_model.safetensors")
        >>> said = '{"peft_type": "LORA", "r": 4, "lora_alpha": 4}'
        >>> _ = Path("adapter/adapter_config.json").write_text(said)
        >>> found = joma.probe_adapter("adapter")
        >>> float(found.table().set_index("metric")["value"]["rank_used"])
        2.0
    """
    settings = ProbeSettings(reading=ReadingSettings(model=str(folder)), adapter=True, seed=seed)
    return ProbeResult(settings, settings.run(progress or Progress()))


def suggestion(tables: Mapping[str, pd.DataFrame]) -> RankSuggestion:
    """The rank for a next training, from the tables."""
    usual = rows(tables["adapter"], metric="rank_used").set_index("module")["random_low"]
    changes = {
        str(name): (int(own["rank"].iloc[0]), own["value"].to_numpy(float), float(usual[name]))
        for name, own in tables["spectrum"].groupby("module", sort=False)
    }
    return suggest_rank(changes)


def adapter_sentences(tables: Mapping[str, pd.DataFrame]) -> list[str]:
    """How much of the rank was used, the suggestion, and where the change points."""
    table = tables["adapter"]
    used = rows(table, metric="rank_used")
    told = suggestion(tables)
    given = _span(used["rank"])
    said = [
        f"{_of(used)}: 99 % of a change's energy lies in {_span(used['value'])} of {given} directions "
        f"(median {used['value'].median():g}; of random adapters {used['random'].median():.3g})."
    ]
    if told.rank is None:
        return [told.reason]
    said.append(f"Suggested rank: {told.rank}. {told.reason}")
    overlap = [rows(table, metric=f"overlap_{side}") for side in ("outputs", "inputs")]
    if all(len(one) for one in overlap):
        outputs, inputs = (
            f"{one['value'].median():.1%} (random: {one['random'].median():.1%})" for one in overlap
        )
        said.append(
            f"Of the energy {outputs} lies in the base's leading output directions and {inputs} in its "
            "leading input directions (medians)."
        )
    return said


def _of(used: pd.DataFrame) -> str:
    count = len(used)
    return "1 module" if count == 1 else f"{count} modules"


def _span(values: pd.Series) -> str:
    low, high = values.min(), values.max()
    return f"{low:g}" if low == high else f"{low:g} to {high:g}"


def adapter_as_text(tables: Mapping[str, pd.DataFrame]) -> str:
    """A row per module, random adapters beside, with a legend; then what could not be measured."""
    table = tables["adapter"]
    measured = table[table["metric"] != NOT_MEASURED]
    wide = measured.pivot_table(index="module", columns="metric", values=["value", "random"], sort=False)
    shown = pd.DataFrame(index=wide.index)
    shown["rank"] = measured.groupby("module", sort=False)["rank"].first().astype(int)
    for metric, name in zip(_SHOWN, list(_LEGEND)[1:], strict=True):
        if ("value", metric) in wide:
            shown[name] = wide["value", metric]
            if ("random", metric) in wide and name in ("used", "effective", "outputs", "inputs"):
                shown[f"{name} random"] = wide["random", metric]
    lines = [shown.to_string(float_format=lambda value: f"{value:.3g}", na_rep="-"), ""]
    lines += [f"{name:<10} {words}" for name, words in _LEGEND.items() if name in shown]
    missing = rows(table, metric=NOT_MEASURED)
    lines += [f"not measured: {row.module}: {row.reason}" for row in missing.itertuples()]
    return "\n".join(lines)


CAPTION = (
    "Left: share of a change's energy, direction by direction, each module a line. Middle: directions used "
    "of those given, random adapters' range in grey. Right: share of the energy in the base's leading "
    "directions."
)


def draw_adapter(tables: Mapping[str, pd.DataFrame]) -> Figure:
    """Draw the figure that ``CAPTION`` describes."""
    drawings: list[Callable[[Axes], None]] = [
        lambda axes: _draw_spectra(axes, tables["spectrum"]),
        lambda axes: _draw_beside(axes, tables["adapter"], ("rank_used",), "directions that hold 99 %"),
    ]
    overlaps = ("overlap_outputs", "overlap_inputs")
    if len(rows(tables["adapter"], metric=overlaps[0])):
        title = "energy in the base's leading directions"
        drawings.append(lambda axes: _draw_beside(axes, tables["adapter"], overlaps, title))
    figure, axes = panels(1, len(drawings), width=4.6, height=3.7)
    for place, drawing in zip(axes.flat, drawings, strict=True):
        drawing(place)
    return figure


def _draw_spectra(axes: Axes, spectrum: pd.DataFrame) -> None:
    for number, (_, own) in enumerate(spectrum.groupby("module", sort=False)):
        axes.plot(own["direction"], own["share"], ".-", color=PALETTE[number % len(PALETTE)], alpha=0.6)
    axes.set(title="share of the energy", xlabel="direction", yscale="log")


def _draw_beside(axes: Axes, table: pd.DataFrame, metrics: tuple[str, ...], title: str) -> None:
    for number, metric in enumerate(metrics):
        own = rows(table, metric=metric).reset_index(drop=True)
        at = np.arange(len(own))
        if number == 0:
            axes.fill_between(at, own["random_low"], own["random_high"], color="grey", alpha=0.3, step="mid")
        label = metric.partition("_")[2]
        axes.plot(at, own["value"], "o", color=PALETTE[number], label=label)
    if len(metrics) > 1:
        axes.legend()
    axes.set(title=title, xlabel="module, in the file's order", ylim=(0, None))
