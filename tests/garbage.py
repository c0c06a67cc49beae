"""Every claim about learning, judged on garbage: ``python tests/garbage.py`` prints which of them turn.

Garbage is put in the place of the real thing in the tables of the stored runs (docs/stored.py): the rows of
an experiment's own null, an untrained model, shuffled words, tokens, trees or rates, a detector that always
or never alarms, a law that says 0. A claim that still holds says nothing of what was learned. Statements of
mathematics (``Statement.exact``) have no garbage: a wrong formula fails them (tests/mutations.py).

Exit status 1: a claim holds on its garbage, or names none.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

import numpy as np
import pandas as pd

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "docs"))

import stored  # noqa: E402  # docs is no package

from joma.core.claim import Claim  # noqa: E402
from joma.experiments.beyond.alarm.detection import OURS, OWN_CUSUM, WHOLE  # noqa: E402
from joma.experiments.beyond.alarm.rules import KURTOSIS  # noqa: E402
from joma.experiments.beyond.attention_rate import all_name, attention_name  # noqa: E402
from joma.experiments.beyond.why_bounce.run import FORBIDDEN, FORWARD, HELD, ORDER  # noqa: E402
from joma.experiments.joma_paper.deep_hierarchy import (  # noqa: E402
    FROZEN,
    SHUFFLED,
    SHUFFLED_CLASSES,
    SHUFFLED_STOPS,
    SINGLE,
    STOPS,
    TREE,
)

Tables = Mapping[str, pd.DataFrame]
Change = Callable[[Tables], dict[str, pd.DataFrame]]
PASSES = ("holds", "corrected")


@dataclass(frozen=True)
class Garbage:
    """What takes the place of the real thing, and the claims that it is garbage of."""

    name: str
    change: Change
    claims: str = "*"
    """Patterns of what stands behind the experiment's name, apart by spaces; ``-`` leaves one out."""

    def concerns(self, claim: Claim) -> bool:
        """Whether it is garbage of this claim."""
        patterns, name = self.claims.split(), claim.id.partition(".")[2]
        chosen = [one for one in patterns if not one.startswith("-")] or ["*"]
        left_out = [one[1:] for one in patterns if one.startswith("-")]
        return any(fnmatchcase(name, one) for one in chosen) and not any(
            fnmatchcase(name, one) for one in left_out
        )


@dataclass(frozen=True)
class Result:
    """A claim on one kind of garbage."""

    run: str
    claim: Claim
    garbage: str
    on_garbage: str
    """Its verdict; empty where the claim names no garbage."""

    @property
    def turned(self) -> bool:
        """Whether the claim does not hold on garbage."""
        return bool(self.on_garbage) and self.on_garbage not in PASSES

    def __str__(self) -> str:
        turned = "turned" if self.turned else "NOT TURNED" if self.on_garbage else "NO GARBAGE"
        return (
            f"{self.run + ': ' if '-' in self.run else ''}{self.claim.id:44} {self.garbage:38} "
            f"{self.claim.verdict:10} {self.on_garbage:10} {turned}"
        )


def instead(column: str, **real_of: str) -> Change:
    """``instead("text", real="shuffled")``: the null's rows are those of the real thing, too."""
    return replaced(column, real_of)


def replaced(column: str, real_of: Mapping[str, str], *, within: str = "") -> Change:
    """Value of the real rows -> value of the rows that take their place, in all tables with both.

    With ``within``, in those of its groups alone that have both.
    """

    def change_one(given: pd.DataFrame) -> pd.DataFrame:
        for real, null in real_of.items():
            own = given[given[column] == null].assign(**{column: real})
            if len(own) and (given[column] == real).any():
                given = pd.concat([given[given[column] != real], own], ignore_index=True)
        return given

    def change(tables: Tables) -> dict[str, pd.DataFrame]:
        found = {}
        for name, given in tables.items():
            if column in given:
                parts = [one for _, one in given.groupby(within)] if within in given else [given]
                given = pd.concat([change_one(one) for one in parts], ignore_index=True)
            found[name] = given
        return found

    return change


def table(name: str, change: Callable[[pd.DataFrame], pd.DataFrame]) -> Change:
    """One table is another."""
    return lambda tables: {**tables, name: change(tables[name].copy())}


def then(*changes: Change) -> Change:
    """One after the other."""

    def change(tables: Tables) -> dict[str, pd.DataFrame]:
        found = dict(tables)
        for one in changes:
            found = one(found)
        return found

    return change


def set_where(column: str, value: float, **where: str) -> Callable[[pd.DataFrame], pd.DataFrame]:
    """A constant in some rows."""

    def change(given: pd.DataFrame) -> pd.DataFrame:
        chosen = np.logical_and.reduce([given[key] == wanted for key, wanted in where.items()])
        given.loc[chosen, column] = value
        return given

    return change


def untrained(*keys: str, moment: str = "step") -> Callable[[pd.DataFrame], pd.DataFrame]:
    """Every moment has the values of the first; ``keys`` tell the curves apart."""

    def change(given: pd.DataFrame) -> pd.DataFrame:
        ordered = given.sort_values(moment, kind="stable")
        first = ordered.groupby([*keys], dropna=False)["value"].transform("first")
        given["value"] = first.reindex(given.index)
        return given

    return change


def shuffled(column: str, *within: str) -> Callable[[pd.DataFrame], pd.DataFrame]:
    """A column dealt anew, within groups."""

    def change(given: pd.DataFrame) -> pd.DataFrame:
        random, given = np.random.default_rng(4), given.copy()
        groups = given.groupby([*within]) if within else [(None, given)]
        for _, part in groups:
            given.loc[part.index, column] = random.permutation(part[column].to_numpy())
        return given

    return change


def _alarms(**steps: Callable[[pd.DataFrame], pd.Series]) -> Change:
    """Other first alarms of the network (``ours``), the monitor (``whole``) and the messages (``state``)."""

    def change(tables: Tables) -> dict[str, pd.DataFrame]:
        given, names = tables["alarms"].copy(), {"ours": OURS, "whole": WHOLE}
        keys = ["setting", "branch", "cadence", "base"]
        for short, rule in names.items():
            if short in steps:
                own = given["rule"] == rule
                at = given.loc[own, "step"].fillna(given.loc[own, "steps"])
                new = steps[short](given).reindex(pd.MultiIndex.from_frame(given.loc[own, keys])).to_numpy()
                moved = np.where(np.isnan(new), given.loc[own, "steps"], new) - at
                given.loc[own, "step"] = new
                for lead in ("lead_on_onset", "lead_on_cusum"):
                    given.loc[own, lead] -= moved
        found = {**tables, "alarms": given}
        if "state" in steps:
            states = tables["states"].copy()
            found["states"] = states.assign(step=steps["state"](states).to_numpy())
        return found

    return change


def _of_rule(rule: str) -> Callable[[pd.DataFrame], pd.Series]:
    return lambda given: given[given["rule"] == rule].set_index(["setting", "branch", "cadence", "base"])[
        "step"
    ]


def _all(value: float) -> Callable[[pd.DataFrame], pd.Series]:
    return lambda given: pd.Series(value, given.index)


def _always(given: pd.DataFrame) -> pd.Series:
    return _of_rule(OURS)(given).fillna(0.0) * 0.0


def _never(given: pd.DataFrame) -> pd.Series:
    return _of_rule(OURS)(given) * np.nan


def _unmoved(given: pd.DataFrame) -> pd.DataFrame:
    """Curves without a dip or a rebound: an untrained model's."""
    sizes = dict.fromkeys(("depth_of_dip", "rebound"), 0.0)
    sure = dict.fromkeys(("dip_probability", "rebound_probability"), 1.0)
    return given.assign(**sizes, **sure, end=given["start"], transient_step=np.nan)


def _still(given: pd.DataFrame) -> pd.DataFrame:
    """The guess that the logits do not move in the place of every formula of fig2, and shuffled tokens."""
    keys = ["run", "data", "statistic"]
    wide = given.pivot_table(index=keys, columns="metric", values="value")
    for name in ("correlation", "correlation_1", "correlation_2"):
        wide[name] = wide["correlation_shuffled"]
    for name in ("error", "error_moving", "error_exact"):
        wide[name] = wide["error_still"]
    return wide.reset_index().melt(keys, var_name="metric")


def _pinned_is_free(given: pd.DataFrame) -> pd.DataFrame:
    """Untouched runs in the place of those whose entropy is pinned at the dip."""
    pinned = (given["way"] == "entropy") & (given["when"] == "dip")
    stops = given[pinned].groupby(["depth", "seed"])["stop"].first()
    free = given[given["way"] == ""].join(stops.rename("dip"), on=["depth", "seed"])
    free = free.assign(way="entropy", when="dip", stop=free["dip"]).drop(columns="dip")
    return pd.concat([given[~pinned], free], ignore_index=True)


def _uninformative(tables: Tables) -> dict[str, pd.DataFrame]:
    """linear_agrees where the context says nothing: its numbers in the place of every run's."""
    nothing, given = tables["uninformative"], tables["agreement"]
    metrics = nothing["metric"].unique()
    runs = [nothing.assign(run=run) for run in given["run"].unique()]
    return {
        **tables,
        "agreement": pd.concat([given[~given["metric"].isin(metrics)], *runs], ignore_index=True),
    }


def _untrained_neurons(tables: Tables) -> dict[str, pd.DataFrame]:
    """fig10's untrained networks in the place of the trained ones, of all seeds."""
    seeds = tables["seeds"]
    others = seeds[seeds["table"] != "neurons"]
    swapped = seeds[seeds["table"] == "untrained_neurons"].assign(table="neurons")
    return {
        **tables,
        "neurons": tables["untrained_neurons"],
        "seeds": pd.concat([others, swapped], ignore_index=True),
    }


def _outside_the_premise(given: pd.DataFrame) -> pd.DataFrame:
    """Pairs of rates with eta_Y below 100 eta_Z in the place of the others: every pair once more."""
    keys = ["eta_y", "eta_z"]
    ratio = given["eta_y"] / given["eta_z"]
    inside, outside = given[ratio >= 99], given[ratio < 99]
    pairs, others = (part[keys].drop_duplicates().to_numpy() for part in (inside, outside))
    others = others[np.argsort(others[:, 0], kind="stable")]
    parts = [outside]
    for (y, z), (other_y, other_z) in zip(pairs, others[np.arange(len(pairs)) % len(others)], strict=True):
        own = outside[(outside["eta_y"] == other_y) & (outside["eta_z"] == other_z)]
        parts.append(own.assign(eta_y=y, eta_z=z))
    return pd.concat(parts, ignore_index=True)


def _only_chance(given: pd.DataFrame) -> pd.DataFrame:
    """YZ without residual connections is YZ with them, but for the largest gap of two seeds."""
    chosen = given[given["chosen"]]
    gap = chosen.groupby(["model", "depth"])["loss"].agg(lambda loss: loss.max() - loss.min()).max()
    real = given[given["model"] == "YZ"]
    parts = [given[given["model"] == "YZ"], given[given["model"] == "decoder"]]
    parts += [
        real.assign(model=name, loss=real["loss"] + sign * gap)
        for name, sign in (("YZ, no residual", 1.0), ("YZ, low rank", -1.0))
    ]
    return pd.concat(parts, ignore_index=True)


def _unigram(tables: Tables) -> dict[str, pd.DataFrame]:
    """A model that knows how often words are, and nothing else."""
    loss = tables["baselines"].set_index("model")["value"]["unigram"]
    return {**tables, "losses": tables["losses"].assign(loss=loss)}


def _other_data(given: pd.DataFrame) -> pd.DataFrame:
    """The forecast made for another data set, in the place of the forecast."""
    other = ", another data set"
    own = given[given["closure"].str.endswith(other)]
    own = own.assign(closure=own["closure"].str.removesuffix(other))
    return pd.concat([given[given["closure"].str.endswith(other)], own], ignore_index=True)


def _free_logits(given: pd.DataFrame) -> pd.DataFrame:
    """embeddings: the motion of free logits in the place of those of two matrices, at every scale."""
    motion = given[given["metric"] == "motion"]
    keys = ["attention", "run", "step"]
    free = motion[motion["model"] == "free"].groupby(keys)["value"].first()
    own = (given["metric"] == "motion") & (given["model"] == "two matrices")
    given.loc[own, "value"] = free.reindex(pd.MultiIndex.from_frame(given.loc[own, keys])).to_numpy()
    return given


def _other_limits(given: pd.DataFrame) -> pd.DataFrame:
    """fig3: Theorem 2's limits dealt to other tokens of the run."""
    limits = given["metric"] == "weight_limit"
    dealt = shuffled("value", "run", "attention")(given[limits].copy())
    return pd.concat([given[~limits], dealt], ignore_index=True)


def _rates_dealt_evenly(given: pd.DataFrame) -> pd.DataFrame:
    """fig8: decoders of a depth in the order of their entropies' ends get the rates in turn."""
    given = given.copy()
    for _, part in given.groupby("depth"):
        order = part.sort_values("end").index
        rates = np.sort(part["learning_rate"].unique())
        given.loc[order, "learning_rate"] = rates[np.arange(len(order)) % len(rates)]
    return given


def _onset_for_growth(given: pd.DataFrame) -> pd.DataFrame:
    """snap_phases: the slowing around the decoder's time in the place of that of the last decades."""
    own = given[given["metric"] == "slowing in ln h around the decoder time"]
    others = given[given["metric"] != "slowing in ln ln t"]
    return pd.concat([others, own.assign(metric="slowing in ln ln t")], ignore_index=True)


def _chance_for_tfidf(given: pd.DataFrame) -> pd.DataFrame:
    own = given[given["reference"] == "chance"].assign(reference="tf-idf")
    return pd.concat([given[given["reference"] != "tf-idf"], own], ignore_index=True)


def _single_layer(tables: Tables) -> dict[str, pd.DataFrame]:
    """deep_hierarchy's single layer, whose losses take the place of the stack's."""
    return {**tables, **replaced("run", {TREE: SINGLE}, within="task")({"losses": tables["losses"]})}


_TREES = replaced("run", {TREE: SHUFFLED, **dict(zip(STOPS, SHUFFLED_STOPS, strict=True))})
_DEEP = [
    Garbage("shuffled tree", _TREES),
    Garbage(
        "attention frozen",
        replaced("run", {TREE: FROZEN}, within="task"),
        "attention_orders classes_prefer_siblings",
    ),
    Garbage(
        "shuffled classes",
        replaced("run", {TREE: SHUFFLED_CLASSES}, within="task"),
        "classes_prefer_siblings",
    ),
    Garbage("a single layer", _single_layer, "depth_helps"),
]
_FIG8 = [
    Garbage(
        "rates dealt evenly over the decoders",
        table("decoders", _rates_dealt_evenly),
        "large_rate_collapses rates_differ some_rate_bounces bounce_is_best",
    ),
]
_INFORMATIVE = replaced("data", {"real": "uninformative"}, within="model")
_UNTRAINED_FIG6 = then(
    table("bounces", _unmoved), table("curves", untrained("run", "variant", "layer", "metric"))
)


def _untrained_at_the_end(curves: pd.DataFrame) -> pd.DataFrame:
    """What the untrained decoder is like, in the place of what it becomes."""
    rest, start = curves[curves["step"] < curves["step"].max()], curves[curves["step"] == 0]
    return pd.concat([rest, start.assign(step=curves["step"].max())], ignore_index=True)


def _turned_round(curves: pd.DataFrame) -> pd.DataFrame:
    """The curves from their end to their beginning."""
    steps = sorted(curves["step"].unique())
    return curves.assign(step=curves["step"].map(dict(zip(steps, reversed(steps), strict=True))))


def _only_falls(curves: pd.DataFrame) -> pd.DataFrame:
    """Each curve's values in falling order."""
    runs = [name for name in curves.columns if name not in ("step", "value")]
    curves = curves.sort_values("step", ignore_index=True)
    falling = curves.groupby(runs)["value"].transform(lambda one: np.sort(one.to_numpy())[::-1])
    return curves.assign(value=falling)


def _dealt_evenly(forces: pd.DataFrame) -> pd.DataFrame:
    """Every set moves the entropy as much as any other, in fall and rise."""
    return forces.assign(value=forces.groupby(["phase", "seed", "depth"])["value"].transform("mean"))


_WHY_BOUNCE = [
    Garbage("entropy sorted so that it only falls", table("curves", _only_falls), "bounces"),
    Garbage(
        "the gradient at the dip for the whole way",
        replaced("metric", {"residual": "residual_at_once"}),
        "adds_up",
    ),
    Garbage(
        "a freeze that changes nothing", table("sets", set_where("value", 0.0, way="frozen")), "norms memory"
    ),
    Garbage(
        "values of the end that bring nothing",
        table("sets", set_where("value", 0.0, way="brought")),
        "queries_keys embeddings",
    ),
    Garbage("forces dealt evenly", table("forces", _dealt_evenly), "driver"),
    Garbage(
        "twins in another order",
        replaced("branch", dict.fromkeys((HELD, FORBIDDEN, FORWARD), ORDER)),
        "held_costs forbidden_costs forward_saves",
    ),
    Garbage("the way back", replaced("metric", {"mass_lost": "mass_lost_back"}), "catch_up"),
    Garbage("tokens of the middle third", replaced("metric", {"rise_rare": "rise_middle"}), "rare_tokens"),
    Garbage(
        "twins in another order",
        replaced("metric", dict.fromkeys(("noise", "scale", f"entropy, {HELD}"), f"entropy, {ORDER}")),
        "noise scale was_held",
    ),
]

GARBAGE: dict[str, list[Garbage]] = {
    "alarm": [
        Garbage("always fires", _alarms(ours=_always, whole=_always, state=_all(0.0)), "-armed -valid"),
        Garbage("never fires", _alarms(ours=_never, whole=_never, state=_all(np.nan)), "-armed -valid"),
        Garbage(
            "the network never alarms",
            _alarms(ours=_never, whole=_of_rule(OWN_CUSUM)),
            "-armed -valid -born_bad -state_in_healthy",
        ),
        Garbage(
            "the kurtosis rule",
            _alarms(ours=_of_rule(KURTOSIS), whole=_of_rule(KURTOSIS)),
            "-armed -valid -born_bad -state_in_healthy",
        ),
        Garbage("never armed", table("validity", lambda t: t.assign(armed_share=0.0)), "armed"),
        Garbage("never judged", table("validity", lambda t: t.assign(valid=np.nan)), "valid"),
        Garbage("never valid", table("validity", lambda t: t.assign(valid=0.0)), "valid"),
    ],
    "attention_rate": [
        Garbage(
            "equal rates",
            replaced("variant", {attention_name(one): attention_name(1.0) for one in (0.3, 3.0)}),
        ),
        Garbage(
            "all weights faster", replaced("variant", {attention_name(3.0): all_name(3.0)}), "not_the_rate"
        ),
    ],
    "bounce_helps": [Garbage("nothing is pinned", table("curves", _pinned_is_free), "entropy_was_held")],
    "cdag": [Garbage("latents permuted over samples", instead("latents", true="permuted"))],
    "deep_hierarchy": _DEEP,
    "deep_hierarchy-decoder": _DEEP,
    "embeddings": [
        Garbage("tokens of unlike frequencies", instead("metric", synonyms="unrelated"), "synonyms"),
        Garbage("free logits", table("course", _free_logits), "accelerates"),
    ],
    "contextual_sparsity": [Garbage("random sets", instead("choice", own="random"))],
    "fig10": [Garbage("untrained networks", _untrained_neurons)],
    "heavy_hitters": [
        Garbage("the untrained decoder", table("curves", _untrained_at_the_end)),
        Garbage("shuffled tokens", instead("metric", cooccurrence="shuffled_cooccurrence"), "cooccur"),
        Garbage("turned round in time", table("curves", _turned_round), "sparse monotone"),
    ],
    "fig2": [Garbage("shuffled tokens, logits that stay", table("summary", _still))],
    "fig3": [
        Garbage("attention frozen", instead("attention", trained="frozen")),
        Garbage("limits of other tokens", table("final", _other_limits), "losers_*"),
    ],
    "fig5": [
        Garbage("shuffled tree", table("order", shuffled("height", "run")), "order_*"),
        Garbage(
            "linear activation",
            replaced("run", {"relu-feedback": "linear-feedback", "relu-constant": "linear-constant"}),
            "rest_follows_in_block nonlinearity_alone",
        ),
        Garbage(
            "gradients of other contexts",
            replaced("metric", {"change": "change, contexts shuffled"}),
            "gradients_are_stationary",
        ),
        Garbage("a law that says 0", table("rate_ratios", set_where("value", 0.0, run="drift")), "block_law"),
        Garbage("C = I about the rest", replaced("run", {"drift": "rest"}), "block_law"),
        Garbage(
            "untrained",
            table(
                "curves",
                lambda t: t.assign(attention=t.groupby(["run", "height"])["attention"].transform("min")),
            ),
            "linear_control",
        ),
    ],
    "fig6": [Garbage("untrained", _UNTRAINED_FIG6)],
    "fig6-evidence": [
        Garbage("untrained", _UNTRAINED_FIG6),
        Garbage("shuffled words", replaced("variant", {"real": "shuffled words"}), "-beyond_untrained_qk"),
        Garbage(
            "W_Q and W_K left alone",
            replaced("variant", {"real": "W_Q and W_K left alone"}),
            "-beyond_shuffled",
        ),
    ],
    "fig7": [
        Garbage(
            "layers shuffled",
            then(
                table("curves", shuffled("layer", "run", "metric", "step")),
                table("dates", shuffled("layer", "run", "metric", "move")),
            ),
        )
    ],
    "fig8": _FIG8,
    "fig8-hours": _FIG8,
    "forecast": [Garbage("the forecast for other data", table("curves", _other_data))],
    "joint_dynamics": [
        Garbage(
            "untrained",
            table("curves", untrained("run", "layer", "head", "metric", "scale", "given", "sink")),
            "first positive grows values",
        ),
        Garbage(
            "sizes of values dealt to other steps",
            table(
                "curves",
                lambda t: pd.concat(
                    [t[t["metric"] != "value_norm"], shuffled("value")(t[t["metric"] == "value_norm"].copy())]
                ),
            ),
            "values",
        ),
    ],
    "latent_depth": [
        Garbage("a shallow distribution", replaced("data", {"deep": "shallow, again"}), "-agnostic"),
        Garbage(
            "a bag of tokens", instead("model", attention="bag"), "agnostic attention_is_needed_for_depth"
        ),
    ],
    "linear_agrees": [Garbage("contexts that say nothing", _uninformative)],
    "optimizers": [
        Garbage("Adam", replaced("optimizer", {"sgd": "adam", "momentum": "adam"}), "sgd_* momentum_*"),
        Garbage("plain descent", instead("optimizer", adam="sgd"), "adam_*"),
    ],
    "over_parametrisation": [Garbage("untrained", instead("run", trained="untrained"))],
    "snap_embeddings": [
        Garbage("contexts that say nothing", _INFORMATIVE),
    ],
    "snap_fig4": [Garbage("contexts that say nothing", _INFORMATIVE)],
    "snap_fig6": [Garbage("untrained", table("entropy", untrained("run", "last_tokens", "eta_z", "ratio")))],
    "snap_fig7": [
        Garbage("shuffled words", replaced("text", {"real": "shuffled"}), "sparse_* from_order_*"),
        Garbage("untrained", table("curves", untrained("run", "depth", "text", "layer", "metric"))),
    ],
    "snap_phases": [
        Garbage("rates outside of the premise", table("phases", _outside_the_premise), "-snapping -frozen"),
        Garbage("around the decoder's time", table("phases", _onset_for_growth), "snapping frozen"),
    ],
    "snap_tfidf": [
        Garbage("next tokens shuffled", replaced("variant", {"trained": "shuffled"})),
        Garbage("tf-idf shuffled", table("correlations", _chance_for_tfidf), "both_factors synthetic"),
    ],
    "snap_yz_layers": [
        Garbage("a unigram model", _unigram, "works*"),
        Garbage("seeds alone", table("losses", _only_chance), "residual embedding above_decoder"),
    ],
    "table1": [
        Garbage("untrained", table("alignment", untrained("run", "layer", "metric"))),
    ],
    "tree_null": [
        Garbage("the same pairs without the tree", replaced("run", {"tree": "same pairs, no tree"}))
    ],
    "why_bounce": _WHY_BOUNCE,
    "why_bounce-pre-norm": _WHY_BOUNCE,
    "why_bounce-second-text": _WHY_BOUNCE,
}


def judge(run: str) -> Iterator[Result]:
    """Every claim of a stored run that is no mathematics and was tested, on each kind of its garbage."""
    job, tables = stored.job(stored.FOLDER / run), stored.tables(run)
    claims = [claim for claim in job.claims(tables) if not claim.exact and claim.verdict != "not tested"]
    named = set[str]()
    for garbage in GARBAGE.get(run, []):
        own = [claim for claim in claims if garbage.concerns(claim)]
        if own:
            found = {claim.id: claim.verdict for claim in job.claims(garbage.change(tables))}
            named |= {claim.id for claim in own}
            yield from (Result(run, claim, garbage.name, found[claim.id]) for claim in own)
    yield from (Result(run, claim, "-", "") for claim in claims if claim.id not in named)


def runs() -> list[str]:
    """The stored runs."""
    return sorted(path.parent.name for path in stored.FOLDER.glob("*/settings.yaml"))


def main() -> None:
    """Print the table."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--only", action="append", help="may be repeated: a stored run")
    asked = options.parse_args()
    results = []
    print(f"{'claim':44} {'garbage':38} {'real':10} {'on garbage':10}")
    for run in asked.only or runs():
        for result in judge(run):
            print(result, flush=True)
            results.append(result)
    held = [one for one in results if one.claim.verdict in PASSES]
    bad = [one for one in results if not one.turned]
    names = {one.claim.id for one in results}
    print(
        f"{len(names)} claims about learning on {len(results)} kinds of garbage "
        f"({len({one.claim.id for one in held})} hold on the real thing): {len(bad)} do not turn"
    )
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
