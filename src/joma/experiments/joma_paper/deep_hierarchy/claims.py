"""Who is associated first, layer by layer; what attention, the tree and the labels have to do with it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pandas as pd

from joma.core.claim import Claim, Criterion, Statement, above, below, statements
from joma.experiments.joma_paper.deep_hierarchy import (
    DECODER,
    FROZEN,
    LONE,
    RUNS,
    SHUFFLED,
    SHUFFLED_CLASSES,
    SHUFFLED_STOPS,
    SINGLE,
    STOPS,
    TREE,
    WEAK,
    DeepHierarchy,
)

SIBLING, COUSIN = 1, 2
FIGURE = "JoMA Sec. 5, Fig. 5(c)"
SEEDS = "in every seed"
TIMES = "cousins' time of half growth over siblings'"
STATEMENTS = statements(
    {
        "deep_hierarchy.attention_orders": "JoMA Sec. 5, 'self-attention mechanism is adaptive to the "
        "structure' | It is attention that puts the layers in this order: with W_Q and W_K kept at their "
        "start, cousins are associated in layer 2 no later than siblings in layer 1.",
        "deep_hierarchy.families_meet": f"{FIGURE} | On the next level the latents meet: in layer 2 a query "
        "associates with its cousins' units more than with its sibling's.",
        "deep_hierarchy.not_picked_up": "JoMA Sec. 5, 'if they have not been picked up by other tokens' | A "
        "query associates directly with a cousin that has no sibling more than with one that has.",
        "deep_hierarchy.classes_prefer_siblings": "JoMA Sec. 5 | Learning class labels, a query in the end "
        "associates with its sibling more than with its cousins, by its attention: more so than where "
        "attention does not learn.",
        "deep_hierarchy.depth_helps": "JoMA Sec. 5 (several layers learn a hierarchy) | The stack ends "
        "nearer to the best prediction than a single layer of as many weights.",
        "deep_hierarchy.bounce_is_of_use": "JoMA Sec. 4, poster ('useful in multiple Transformer layers') | "
        "In the stack the bounce is of use: to learn attention for half as long again after the dip of its "
        "entropy lowers the loss more than as long before it, and more so than on a shuffled tree.",
    }
)
OF_DECODERS = statements(
    {
        "deep_hierarchy.decoder_siblings_first": f"{FIGURE} | In layer 1 of an ordinary decoder a query "
        "attends to its sibling before its cousins.",
        "deep_hierarchy.decoder_layer_by_layer": f"{FIGURE} | An ordinary decoder attends to siblings in "
        "layer 1 before to cousins in layer 2.",
        "deep_hierarchy.decoder_prefers_siblings": f"{FIGURE} | In layer 1 of an ordinary decoder a query in "
        "the end attends to its sibling more than to its cousins.",
    }
)


def claims(settings: DeepHierarchy, tables: Mapping[str, pd.DataFrame]) -> list[Claim]:
    """Every claim, from the tables alone; all of them in every seed."""
    grown = _ends(tables["associations"], ["task", "run", "seed", "layer", "height"])
    loss = _ends(tables["losses"], ["task", "run", "seed"])
    when = half_times(tables["associations"])
    return [
        *_order(settings, when, "tokens", "its token told from contexts without it"),
        *_order(settings, when, "classes", "class labels"),
        _families_meet(grown),
        _lone(settings, grown),
        _labels(grown),
        _depth(loss),
        _bounce(tables["entropy"], loss),
        *_decoder(settings, when, grown),
    ]


def _ends(table: pd.DataFrame, keys: list[str]) -> pd.Series:
    """What every run came to; a decoder takes other steps than a stack."""
    last = table.groupby(["task", "run"])["step"].transform("max")
    return table[table["step"] == last].set_index(keys)["value"]


def half_times(associations: pd.DataFrame) -> pd.Series:
    """When each association has gained half of the most that it gains, between moments by a line."""
    found = {}
    keys = ["task", "run", "seed", "layer", "height"]
    for key, curve in associations.sort_values("step").groupby(keys):
        value, time = curve["value"].to_numpy(), curve["time"].to_numpy()
        half = 0.5 * value.max()
        after = int((value >= half).argmax())
        before = max(after - 1, 0)
        rise = value[after] - value[before]
        share = (half - value[before]) / rise if rise > 0 else 0.0
        found[key] = float(time[before] + share * (time[after] - time[before]))
    return pd.Series(found).rename_axis(keys)


def _of(series: pd.Series, task: str, run: str, layer: int, height: int) -> pd.Series:
    """By seed."""
    return series.xs((task, run, layer, height), level=("task", "run", "layer", "height"))


def _list_values(values: pd.Series) -> str:
    return f"{values.min():.3g} to {values.max():.3g}"


def _exceeds_shuffled(
    ratio: pd.Series, null: pd.Series, of: str, than: str = "that of the shuffled tree"
) -> Criterion:
    """Above one, and above the null of the same seed."""
    return above(1, ratio, of=of, across=SEEDS) & above(null, ratio, of=of, than=than, across=SEEDS)


def _judge_beside_shuffled(
    statement: Statement, ratio: Mapping[str, pd.Series], criterion: Criterion, evidence: str
) -> Claim:
    return statement.judge(
        criterion,
        null=float(ratio[SHUFFLED].min()),
        null_description="shuffled trees (both: least of the seeds)",
        evidence=evidence,
    )


def _order(settings: DeepHierarchy, when: pd.Series, task: str, learned: str) -> list[Claim]:
    """Cousins' half time over siblings', within layer 1 and from layer 1 to layer 2."""
    runs = [TREE, SHUFFLED, FROZEN, *([WEAK] if task == "tokens" else [])]
    found = []
    for layer, name, statement in (
        (1, "siblings_first", "In layer 1 a query associates with its sibling before its cousins"),
        (2, "layer_by_layer", "Siblings are associated in layer 1 before cousins are in layer 2"),
    ):
        ratio = {run: _of(when, task, run, layer, COUSIN) / _of(when, task, run, 1, SIBLING) for run in runs}
        others = "; ".join(f"{run} {_list_values(ratio[run])}" for run in runs)
        found.append(
            _judge_beside_shuffled(
                Statement(f"deep_hierarchy.{task}_{name}", FIGURE, f"{statement} (learned: {learned})."),
                ratio,
                _exceeds_shuffled(ratio[TREE], ratio[SHUFFLED], TIMES),
                f"{settings.seeds} seeds, kappa = {settings.kappa:g}: {others}",
            )
        )
    if task == "tokens":
        found.append(
            STATEMENTS["deep_hierarchy.attention_orders"].judge(
                _exceeds_shuffled(ratio[TREE], ratio[WEAK], TIMES, "that with weak attention")
                & above(
                    ratio[SHUFFLED], ratio[TREE], of=TIMES, than="that of the shuffled tree", across=SEEDS
                )
                & below(1, ratio[FROZEN], of=f"{TIMES}, with frozen attention,", across=SEEDS),
                null=float(ratio[FROZEN].max()),
                null_description="largest with frozen attention",
                evidence="cousins' time in layer 2 over siblings' in layer 1; kappa = 1: "
                + _list_values(ratio[WEAK]),
            )
        )
    return found


def _families_meet(grown: pd.Series) -> Claim:
    share = {
        run: _of(grown, "tokens", run, 2, COUSIN) / _of(grown, "tokens", run, 2, SIBLING)
        for run in (TREE, SHUFFLED, FROZEN, WEAK)
    }
    return _judge_beside_shuffled(
        STATEMENTS["deep_hierarchy.families_meet"],
        share,
        _exceeds_shuffled(share[TREE], share[SHUFFLED], "cousins' association over the sibling's"),
        "cousins' association in layer 2 over siblings', at the end: "
        + "; ".join(f"{run} {_list_values(values)}" for run, values in share.items()),
    )


def _lone(settings: DeepHierarchy, grown: pd.Series) -> Claim:
    gain = _of(grown, "tokens", LONE, 1, COUSIN) / _of(grown, "tokens", TREE, 1, COUSIN)
    other = settings.levels + 1
    null = _of(grown, "tokens", LONE, 1, other) / _of(grown, "tokens", TREE, 1, other)
    return STATEMENTS["deep_hierarchy.not_picked_up"].judge(
        _exceeds_shuffled(
            gain, null, "association with lone cousins over that with the others", "that of the other tree"
        ),
        null=float(null.min()),
        null_description="the same ratio for tokens of the other tree (both: least of the seeds)",
        evidence=f"association in layer 1 with lone cousins over that with the others: {_list_values(gain)}; "
        f"other tree {_list_values(null)}",
    )


def _labels(grown: pd.Series) -> Claim:
    first = {run: _of(grown, "classes", run, 1, SIBLING) for run in (TREE, SHUFFLED, SHUFFLED_CLASSES)}
    first[FROZEN] = _of(grown, "classes", FROZEN, 1, SIBLING)
    ratio = {run: first[run] / _of(grown, "classes", run, 1, COUSIN) for run in (TREE, SHUFFLED, FROZEN)}
    of = "the sibling's association over the cousins'"
    return _judge_beside_shuffled(
        STATEMENTS["deep_hierarchy.classes_prefer_siblings"],
        ratio,
        _exceeds_shuffled(ratio[TREE], ratio[SHUFFLED], of)
        & above(ratio[FROZEN], ratio[TREE], of=of, than="that with frozen attention", across=SEEDS)
        & above(
            10 * first[SHUFFLED_CLASSES].max(),
            first[TREE],
            of="the sibling's association",
            than="ten times any with shuffled classes",
            across=SEEDS,
        ),
        f"{_list_values(ratio[TREE])}, shuffled tree {_list_values(ratio[SHUFFLED])}, frozen attention "
        f"{_list_values(ratio[FROZEN])}; siblings' association "
        f"{_list_values(first[TREE])}, with shuffled classes {_list_values(first[SHUFFLED_CLASSES])}",
    )


def _depth(loss: pd.Series) -> Claim:
    deep, single, frozen = (loss["tokens"][run] for run in (TREE, SINGLE, FROZEN))
    return STATEMENTS["deep_hierarchy.depth_helps"].judge(
        below(single, deep, of="excess loss", than="that of a single layer", across=SEEDS),
        measured=float(deep.max()),
        null=float(single.min()),
        null_description="least excess loss of a single layer with as many weights",
        evidence=f"excess loss (0: the best, 1: without context) {_list_values(deep)}; single layer "
        f"{_list_values(single)}; stack with frozen attention {_list_values(frozen)}",
    )


def _bounce(entropy: pd.DataFrame, loss: pd.Series) -> Claim:
    def rebound(run: str) -> float:
        curves = entropy.query("task == 'classes' and run == @run").groupby("seed")["value"]
        return float((curves.last() - curves.min()).min())

    def savings_of(runs: Iterable[str]) -> tuple[pd.Series, pd.Series]:
        earlier, dip, later = (loss["classes"][run] for run in runs)
        return dip - later, earlier - dip

    after, before = savings_of(STOPS)
    after_shuffled, before_shuffled = savings_of(SHUFFLED_STOPS)
    margin, null = after - before, after_shuffled - before_shuffled
    never = loss["classes"][FROZEN] - loss["classes"][TREE]
    of = "excess loss saved after the dip"
    return STATEMENTS["deep_hierarchy.bounce_is_of_use"].judge(
        above(0, after, of=of, across=SEEDS)
        & above(before.max(), after, of=of, than="any saved before it", across=SEEDS)
        & above(
            null.max(), margin, of=f"{of} less that before it", than="any on shuffled trees", across=SEEDS
        )
        & above(0.001, rebound(TREE), of="rebound of the entropy", across=SEEDS, unit="nats"),
        null=float(null.max()),
        null_description="largest gain after the dip less that before it, on shuffled trees",
        evidence=f"after {_list_values(after)}, before {_list_values(before)}; on shuffled trees "
        f"{_list_values(after_shuffled)} and {_list_values(before_shuffled)}; attention that never learns "
        f"costs {_list_values(never)}; rebound of at least {rebound(TREE):.3f} nats",
    )


def _decoder(settings: DeepHierarchy, when: pd.Series, grown: pd.Series) -> list[Claim]:
    if not settings.decoder_steps:
        reason = (
            "no decoder was trained; --decoder-steps 1500 trains one, and so do the presets decoder and paper"
        )
        return [statement.not_tested(reason) for statement in OF_DECODERS.values()]
    runs = RUNS[DECODER]
    ratios = [
        {run: _of(when, DECODER, run, layer, COUSIN) / _of(when, DECODER, run, 1, SIBLING) for run in runs}
        for layer in (1, 2)
    ]
    found = [
        _judge_beside_shuffled(
            statement,
            ratio,
            _exceeds_shuffled(ratio[TREE], ratio[SHUFFLED], TIMES),
            "; ".join(f"{run} {_list_values(ratio[run])}" for run in runs),
        )
        for statement, ratio in zip(OF_DECODERS.values(), ratios, strict=False)
    ]
    excess = {run: _of(grown, DECODER, run, 1, SIBLING) - _of(grown, DECODER, run, 1, COUSIN) for run in runs}
    found.append(
        OF_DECODERS["deep_hierarchy.decoder_prefers_siblings"].judge(
            above(
                excess[SHUFFLED].abs().max(),
                excess[TREE],
                of="the sibling's logit less a cousin's",
                than="any of either sign with shuffled trees",
                across=SEEDS,
            ),
            null=float(excess[SHUFFLED].abs().max()),
            null_description="largest difference of either sign with shuffled trees",
            evidence=f"{settings.decoder_steps} steps of Adam; least of {settings.seeds} seeds; in layer 2 "
            + _list_values(_of(grown, DECODER, TREE, 2, SIBLING) - _of(grown, DECODER, TREE, 2, COUSIN)),
        )
    )
    return found


def answer(settings: DeepHierarchy, tables: Mapping[str, pd.DataFrame]) -> list[str]:
    """In which order associations come, by what is learned."""
    when = half_times(tables["associations"])
    told = {"tokens": "its token told from contexts without it", "classes": "class labels"}
    told |= {DECODER: f"{told['tokens']}, by an ordinary decoder"} if settings.decoder_steps else {}
    sentences = []
    for task, learned in told.items():
        ratio, null = (
            _of(when, task, run, 2, COUSIN) / _of(when, task, run, 1, SIBLING) for run in (TREE, SHUFFLED)
        )
        sentences.append(
            f"Learned: {learned}. Cousins are associated in layer 2 {ratio.median():.2g} times as late as "
            f"siblings in layer 1 (median; later in {(ratio > 1).sum()} of {len(ratio)} seeds; shuffled "
            f"trees {null.median():.2g})."
        )
    return sentences
