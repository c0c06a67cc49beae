"""Write docs/findings.md from docs/findings.txt: its text, with the numbers of the stored runs put in.

The page begins with a table of the claims that ``<!-- claims: ... -->`` names under a heading: statement, verdict,
number, null, figure. Of each finding ``LINES`` lines are shown, with the experiment's figure; the rest is folded.

``{fig6.rebound:.2f}`` is what that claim measured, ``{fig6.rebound.null:.2f}`` its null, ``.printed`` the
error of the printed form; other names are those of ``numbers``. A number that stands in the text itself
comes from the command that is named beside it.
"""

from __future__ import annotations

import json
import re
import textwrap
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import stored
from errata import cell

from joma.core.tables import rows
from joma.experiments.beyond.attention_rate import attention_name
from joma.experiments.beyond.forecast.claims import OTHER
from joma.experiments.beyond.joint_dynamics.tables import of_layers
from joma.experiments.joma_paper.fig5.claims import LEVEL
from joma.experiments.joma_paper.fig5.rate_ratios import threshold
from joma.experiments.shared.curves import MEASURED
from joma.report.terminal import number

HERE = Path(__file__).parent
_FIELDS = {"null": "null", "printed": "printed_error"}
_NAMED = re.compile(r"<!-- claims: ([^>]*) -->\n")
LINES, WIDTH = 10, 118
"""Lines of a finding that are shown at once, and letters of a line."""
_WHOLE = {"break_long_words": False, "break_on_hyphens": False}
Value = float | str


def numbers() -> dict[str, Value]:
    """What the text says beside the claims' own numbers."""
    bounces = stored.tables("fig6")["bounces"]
    entropy, rank, change = (bounces[bounces["metric"] == metric] for metric in MEASURED)
    seeds = stored.tables("bounce_helps")["bounces"].groupby("depth")
    curves = of_layers(stored.tables("joint_dynamics")["curves"])
    first, last = (curves[curves["step"] == s]["value"] for s in (20, curves["step"].max()))
    untrained = curves[curves["step"] == 0]["value"].abs().max()
    block = stored.tables("joint_dynamics")["block"]
    flows = block[(block["progress"] == 1) & (block["metric"] == "index")]
    exp, softmax = (flows[flows["attention"] == kind]["value"] for kind in ("exp", "softmax"))
    summary = stored.tables("fig2")["summary"]
    moving = summary[(summary["metric"] == "error_moving") & (summary["statistic"] == "final")]
    return {
        "fig2.smooth": moving[moving["data"] == "smooth"]["value"].median(),
        "fig2.random": moving[moving["data"] == "random"]["value"].median(),
        "fig6.start": entropy["start"].mean(),
        "fig6.lowest": entropy["dip_value"].mean(),
        "fig6.dip": entropy["dip_step"].max(),
        "fig6.seeds": len(entropy),
        "fig6.rank_start": rank["start"].mean(),
        "fig6.rank_end": rank["dip_value"].mean(),
        "fig6.p": entropy["rebound_probability"].max(),
        "fig6.change_start": change["start"].mean(),
        "fig6.change_end": change["end"].mean(),
        "fig6.early_seeds": int(entropy["transient_step"].notna().sum()),
        "joint.exp": exp.min(),
        "joint.softmax_least": softmax.min(),
        "joint.softmax_most": softmax.max(),
        "joint.first_least": first.min(),
        "joint.first_most": first.max(),
        "joint.last_least": last.min(),
        "joint.last_most": last.max(),
        "joint.untrained": untrained,
        "joint.above": int((last > untrained).sum()),
        "joint.of": len(last),
        "cdag.linear_ahead": -(stored.claims()["cdag.nonlinearity_helps"].measured or 0.0),
        "bounce.one": seeds["rebound"].mean()[1],
        "bounce.two": seeds["rebound"].mean()[2],
        "bounce.p_one": seeds["rebound_probability"].first()[1],
        "bounce.p_two": seeds["rebound_probability"].first()[2],
        **_forecasts(),
        **_neurons(),
        **_depth(),
        **_coverage(),
        **_rates(),
        "attention_rate.slow": _rebound_of_slow_attention(),
    }


def _rebound_of_slow_attention() -> float:
    """The median rebound at the smallest ratio of the rates."""
    bounces = stored.tables("attention_rate")["bounces"]
    found = rows(bounces, metric="attention_entropy", variant=attention_name(0.3))
    return float(found["rebound"].median())


def _forecasts() -> dict[str, Value]:
    curves = stored.tables("forecast")["curves"]
    errors = curves[(curves["attention"] == "softmax") & (curves["metric"] == "logit_error")]
    ends = (
        errors[errors["step"] == errors["step"].max()]
        .groupby(["data", "closure"])["value"]
        .agg(["min", "max"])
    )
    return {
        f"forecast.{data}_{which}{name}": 100 * ends.loc[(data, f"moving{closure}"), which]
        for data in ("smooth", "random")
        for which in ("min", "max")
        for name, closure in (("", ""), ("_other", OTHER))
    }


def _neurons() -> dict[str, Value]:
    wide = stored.tables("fig10")["neurons"].pivot(
        index=["layer", "stack", "neuron"], columns="metric", values="value"
    )
    found = wide[wide["q_value"] <= 0.05]
    return {
        "fig10.found": len(found),
        "fig10.of": int(wide["q_value"].notna().sum()),
        "fig10.apart": int((found["relatedness_p_value"] >= 0.5).sum()),
        "fig10.related": int((found["relatedness_p_value"] <= 0.05).sum()),
    }


def _depth() -> dict[str, Value]:
    losses = stored.tables("latent_depth")["losses"]
    end = losses[losses["step"] == losses["step"].max()]
    means = end.groupby(["data", "model"])["value"].mean()
    return {
        "depth.deep": means["deep"]["bag"] - means["deep"]["attention"],
        "depth.shallow": means["shallow"]["bag"] - means["shallow"]["attention"],
    }


def _coverage() -> dict[str, Value]:
    table = stored.tables("over_parametrisation")["coverage"]
    found = table[table["metric"] == "all found"].groupby(["run", "neurons"])["value"].mean()
    names = {"trained": "trained", "untrained": "untrained", "law": "law", "equal": "law, equal basins"}
    return {f"coverage.{name}_{k}": found[run, k] for name, run in names.items() for k in (5, 12, 24)}


def _rates() -> dict[str, Value]:
    table = stored.tables("fig5")["rate_ratios"]
    rebounds = table.pivot_table(index="kappa", columns="run", values="value")
    kappas, trained, drift = (np.asarray(a) for a in (rebounds.index, rebounds["trained"], rebounds["drift"]))
    return {
        "rates.trained": threshold(kappas, trained, LEVEL),
        "rates.drift": threshold(kappas, drift, LEVEL),
        **{f"rates.rebound_{kappa}": rebounds["trained"][kappa] for kappa in (30, 100)},
    }


def fill(text: str) -> str:
    """The text with the numbers put in."""
    claims, others = stored.claims(), numbers()

    def value(match: re.Match[str]) -> str:
        name, form = match[1], match[2] or ""
        if name in others:
            return format(others[name], form)
        if name in claims:
            return format(claims[name].measured, form)
        id, _, field = name.rpartition(".")
        return format(getattr(claims[id], _FIELDS[field]), form)

    return re.sub(r"\{([a-z][a-z0-9_.]+)(?::([^{}]+))?\}", value, text)


@dataclass(frozen=True)
class Finding:
    """A section of the text."""

    heading: str
    claims: tuple[str, ...]
    body: str

    def anchor(self) -> str:
        """What a link to its heading is called."""
        plain = re.sub(r"[^\w\s-]", "", self.heading.lower())
        return re.sub(r"\s+", "-", plain.strip())

    def title(self) -> str:
        """The heading without its commands."""
        return self.heading.partition(" (")[0]

    def picture(self) -> str:
        """The figure of the first experiment that its heading names and that has one."""
        names = re.findall(r"[a-z_0-9]+", " ".join(re.findall(r"`([^`]*)`", self.heading)))
        return next((name for name in names if (HERE / "experiments" / f"{name}.webp").is_file()), "")


def findings(text: str) -> tuple[str, list[Finding]]:
    """What stands before the first heading, and the sections."""
    head, *sections = re.split(r"^## ", text, flags=re.MULTILINE)
    found = []
    for section in sections:
        heading, _, body = section.partition("\n")
        named = _NAMED.search(body)
        claims = tuple(named[1].split()) if named else ()
        found.append(Finding(heading, claims, _NAMED.sub("", body).strip() + "\n"))
    return head, found


def table(found: list[Finding]) -> str:
    """A row for each claim that a finding names."""
    lines = ["| finding | statement | verdict | measured | null | figure |", "|---|---|---|---|---|---|"]
    for finding in found:
        name = finding.picture()
        figure = f"[figure](experiments/{name}.md)" if name else ""
        for id in finding.claims:
            cells = (f"[{finding.title()}](#{finding.anchor()})", *_claim_cells(id), figure)
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _claim_cells(id: str) -> tuple[str, str, str, str]:
    claim = stored.claims().get(id)
    if claim is not None:
        null = "" if claim.null is None else number(claim.null)
        printed = f" (as printed {number(claim.printed_error)})" if claim.printed_error is not None else ""
        return cell(claim.statement), claim.verdict, number(claim.measured) + printed, null
    listed = json.loads((stored.FOLDER / "check.json").read_text("utf-8"))
    checked = next(entry for entry in listed if entry["id"] == id)
    statement = cell(checked["statement"])
    row = next(
        line for line in (HERE / "errata.md").read_text("utf-8").splitlines() if f"| {statement} |" in line
    )
    errors = re.split(r"(?<!\\) \| ", row.strip("| "))
    if checked["verdict"] == "corrected":
        return statement, "corrected", f"error {errors[4]} (as printed {errors[3]})", "exact"
    return statement, checked["verdict"], errors[2], "exact"


def fold(finding: Finding) -> str:
    """At most ``LINES`` lines of a finding, its figure, and the rest behind a line that opens it."""
    shown: list[str] = []
    rest = [part for block in finding.body.strip().split("\n\n") for part in list_items(block)]
    room = LINES
    while rest and room > 0:
        block, length = rest[0], len(rest[0].splitlines())
        if length <= room:
            shown.append(rest.pop(0))
            room -= length
            continue
        if not shown and not block.startswith(("|", "-", "!")):
            first, left = split_paragraph(block, room)
            shown.append(first)
            rest[:1] = [left] if left else []
        break
    name = finding.picture()
    lines = [f"## {finding.heading}\n", *(f"{block}\n" for block in shown)]
    if name:
        lines.append(f"[![Figure of {name}](experiments/{name}.webp)](experiments/{name}.md)\n")
    if rest:
        lines += ['<details markdown="1">', "<summary>More: numbers, nulls, longer runs</summary>\n"]
        lines += [*(f"{block}\n" for block in rest), "</details>\n"]
    return "\n".join(lines)


def list_items(block: str) -> list[str]:
    """The points of a list, each by itself; anything else as it is."""
    return re.split(r"\n(?=- )", block) if block.startswith("- ") else [block]


def split_paragraph(block: str, lines: int) -> tuple[str, str]:
    """Whole sentences that fill at most so many lines, and what is left."""
    sentences = re.split(r"(?<=[.:)]) (?=[A-Z(`*])", " ".join(block.split()))
    taken = 1
    while taken < len(sentences) and len(textwrap.wrap(" ".join(sentences[: taken + 1]), WIDTH)) <= lines:
        taken += 1
    return tuple(
        textwrap.fill(" ".join(part), WIDTH, **_WHOLE) for part in (sentences[:taken], sentences[taken:])
    )  # type: ignore[return-value]


def page() -> str:
    """The whole page in Markdown."""
    head, found = findings(fill((HERE / "findings.txt").read_text("utf-8")))
    return head + table(found) + "\n" + "\n".join(map(fold, found))


if __name__ == "__main__":
    (HERE / "findings.md").write_text(page(), encoding="utf-8")
