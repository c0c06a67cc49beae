"""What of the hierarchy's claims is owed to the tree, and what to its co-occurrences alone."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
from scipy.stats import ttest_ind

from joma.core.claim import Claim, above, below, statements, within_error
from joma.core.tables import rows
from joma.experiments.joma_paper.tree_null import PAIRS, TREE, TreeNull

SIGNIFICANT = 0.05
HIGHER = 0.02
"""By how much the laws must differ in some moment of four tokens."""
SLACK = 1.05
"""The block is exact and has no seeds: what it does is owed to the tree if it does so by 5 % more."""
LEAST_REBOUND = 0.01
"""Nats below which the block counts as not bouncing, as in ``fig5``."""
OF_SEEDS = {
    "layer_gain": (
        "layer: gain over the bag",
        "latent_depth.attention_is_needed_for_depth",
        "attention gains more over a bag of tokens",
    ),
    "layer_selective": (
        "layer: attention to the sibling",
        "latent_depth.attention_is_selective_where_data_are",
        "attention prefers the sibling more",
    ),
    "layer_far": ("layer: far slowed", "latent_depth.far_is_slowed", "attention slows the far more"),
    "stack_order": (
        "stack: cousins after siblings, layer by layer",
        "deep_hierarchy.tokens_layer_by_layer",
        "cousins in layer 2 come later after siblings in layer 1",
    ),
    "stack_families": (
        "stack: families meet",
        "deep_hierarchy.families_meet",
        "a query in layer 2 associates with its cousins more than with its sibling, by a larger ratio",
    ),
    "stack_depth": (
        "stack: depth helps",
        "deep_hierarchy.depth_helps",
        "a second layer lowers the loss more",
    ),
    "stack_bounce": (
        "stack: bounce is of use",
        "deep_hierarchy.bounce_is_of_use, bounce_helps",
        "what attention learns after its dip is of more use",
    ),
    "neurons": ("neurons: learned", "table1.learned_s1", "training aligns units with the latents more"),
}
"""Claim -> statistic, the claims that stand on it, and what they say more of the tree."""
STATEMENTS = statements(
    {
        "tree_null.same_pairs": "JoMA Thm 5 | The two laws have the same means and co-occurrences, and "
        "others of four tokens.",
        "tree_null.block_order": "what fig5.order stands on | In the block, cousins are associated later "
        "after siblings on the tree than on the same pairs without it.",
        "tree_null.block_rebound": "what fig5.rest_follows stands on | In the block, attention spreads again "
        "further on the tree than on the same pairs without it.",
        **{
            f"tree_null.{name}": f"what {of} stands on | On the tree {words} than on the "
            "same pairs without it."
            for name, (_, of, words) in OF_SEEDS.items()
        },
    },
    exact=("tree_null.same_pairs",),
)


def claims(settings: TreeNull, tables: Mapping[str, pd.DataFrame]) -> list[Claim]:
    """Whether the laws are what they should be; and each statistic, tree against pairs."""
    return [
        _same_pairs(tables["laws"]),
        *_block(tables["block"]),
        *(_of_seeds(name, tables["statistics"]) for name in OF_SEEDS),
    ]


def _same_pairs(table: pd.DataFrame) -> Claim:
    wide = table.pivot_table(index=["order", "tokens"], columns="run", values="value")
    apart = (wide[TREE] - wide[PAIRS]).abs().groupby("order").max()
    return STATEMENTS["tree_null.same_pairs"].judge(
        within_error(1e-9, apart.loc[[1, 2]], of="largest difference of a mean or a pair")
        & above(HIGHER, apart[4], of="largest difference of a moment of four tokens"),
        measured=apart[2],
        null=apart[4],
        null_description="largest difference of a moment of four tokens",
        evidence=f"signs, all tokens of 8; of order 3 {apart[3]:.1e}",
    )


def _block(table: pd.DataFrame) -> list[Claim]:
    wide = table.pivot_table(index=["kappa", "run"], columns="metric", values="value")
    ratio = (wide["time of height 2"] / wide["time of height 1"]).unstack("run")
    spread = rows(table, metric="rebound").pivot_table(index="kappa", columns="run", values="value")
    spread = spread[spread.max(axis=1) > LEAST_REBOUND]
    found = []
    for name, values, of, unit in (
        ("block_order", ratio, "cousins' time over the sibling's", ""),
        ("block_rebound", spread, "rebound", "nats"),
    ):
        if values.empty:
            reason = f"the block spreads again by no more than {LEAST_REBOUND:g} nats on either law"
            found.append(STATEMENTS[f"tree_null.{name}"].not_tested(reason))
            continue
        listed = "; ".join(
            f"kappa = {kappa:g}: {row[TREE]:.4g} and {row[PAIRS]:.4g}" for kappa, row in values.iterrows()
        )
        found.append(
            STATEMENTS[f"tree_null.{name}"].judge(
                above(
                    SLACK * values[PAIRS],
                    values[TREE],
                    of=of,
                    than=f"{SLACK:g} times that of the same pairs",
                    across=f"at every kappa of {', '.join(f'{kappa:g}' for kappa in values.index)}",
                    unit=unit,
                ),
                null=float(values[PAIRS].max()),
                null_description="the same pairs without the tree, largest",
                evidence=f"tree and pairs, {listed}",
            )
        )
    return found


def _of_seeds(name: str, table: pd.DataFrame) -> Claim:
    metric, *_ = OF_SEEDS[name]
    wide = rows(table, metric=metric).pivot_table(index="seed", columns="run", values="value")
    real, null = wide[TREE], wide[PAIRS]
    chance = (
        float(ttest_ind(real, null, alternative="greater", equal_var=False).pvalue)
        if real.std() + null.std() > 0
        else 1.0
    )
    chance = min(1.0, len(OF_SEEDS) * chance)
    return STATEMENTS[f"tree_null.{name}"].judge(
        below(
            SIGNIFICANT,
            chance,
            of=f"p of the tree's mean above that of the same pairs, times {len(OF_SEEDS)} statistics,",
        ),
        measured=float(real.mean()),
        null=float(null.mean()),
        null_description="the same pairs without the tree, mean",
        evidence=f"{metric.partition(': ')[2]}: means of {len(wide)} seeds; tree {real.min():.4g} to "
        f"{real.max():.4g}, pairs {null.min():.4g} to {null.max():.4g}; p = {chance:.2g} "
        f"(Welch, one-sided, times {len(OF_SEEDS)})",
    )


def answer(settings: TreeNull, tables: Mapping[str, pd.DataFrame]) -> list[str]:
    """What is owed to the tree, and what is not."""
    found = claims(settings, tables)[1:]
    owed, not_owed = (
        [claim.id.partition(".")[2].replace("_", " ") for claim in found if (claim.verdict == "holds") == yes]
        for yes in (True, False)
    )
    return [
        f"Beside a law with the same co-occurrences and no tree, {len(owed)} of {len(found)} statistics "
        f"of the claims about hierarchy are larger on the tree: {', '.join(owed) or 'none'}. The others "
        f"({', '.join(not_owed) or 'none'}) are not told apart: by themselves they are no evidence of a "
        "hierarchy."
    ]
