"""Scan&Snap's slides, "local distinct / common tokens": whether what a token is depends on the last token."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from joma.core.claim import Claim, at_least, statements
from joma.data.next_token import NextTokenData
from joma.dynamics.token_flow import token_flow

DRAWS = 8
TIMES = (0.0, 0.3, 1.0, 4.0)
STATEMENTS = statements(
    {
        "snap_local.roles": "Scan&Snap slides, 'local distinct / common tokens' | A token that occurs with "
        "one next token of those that follow a last token gains attention beside it, though it is common "
        "beside another last token.",
        "snap_local.alone": "Scan&Snap Thm 2(a) | On the sequences of that last token alone its attention "
        "rises.",
    },
    exact=True,
)


def draw(number: int) -> NextTokenData:
    """Two last tokens with two next tokens each, and a token of its own for each next token.

    Token 0 besides occurs with one next token of the first last token and with both of the second, so that it
    is the one common token there; the first last token has another one, the last.
    """
    rng = np.random.default_rng([number, 23])
    weights = np.zeros((4, 6))
    weights[[0, 2, 3], 0] = rng.uniform(0.3, 1.0, 3)
    weights[np.arange(4), 1 + np.arange(4)] = rng.uniform(0.3, 1.0, 4)
    weights[:2, 5] = rng.uniform(0.3, 1.0)
    return NextTokenData(weights / weights.sum(axis=1, keepdims=True), np.array([0, 0, 1, 1]))


def motion(data: NextTokenData) -> np.ndarray:
    """z' of token 0 beside each last token, (moments, L), along the flow from zero."""
    flow = token_flow(data, eta_y=1.0, eta_z=0.01, times=TIMES)
    return np.stack([flow.at(index).logits[:, 0] for index in range(1, len(TIMES))])


def snap_local() -> list[Claim]:
    """Signs of the attention logits' motion, beside both last tokens and on the sequences of one alone."""
    both = np.stack([motion(draw(number)) for number in range(DRAWS)])
    rises, falls = (both[..., 0] > 0).mean(), (both[..., 1] < 0).mean()
    alone = []
    for number in range(DRAWS):
        rows = draw(number).conditional[:2]
        alone.append(motion(NextTokenData(rows[:, rows.sum(axis=0) > 0], np.array([0, 0])))[:, 0])
    evidence = f"{DRAWS} random data sets, eta_Y = 1, eta_Z = 0.01, {len(TIMES) - 1} moments each"
    return [
        STATEMENTS["snap_local.roles"].judge(
            at_least(1.0, rises, of="share of the moments at which it rises beside the first last token")
            & at_least(1.0, falls, of="share at which it falls beside the second"),
            null=float(np.mean(np.array(alone) > 0)),
            null_description="share at which it rises on the sequences of the first last token alone",
            evidence="in one layer, whose decoder all last tokens share, it falls beside the second in "
            f"{falls:.0%} of the moments; {evidence}",
        ),
        STATEMENTS["snap_local.alone"].judge(
            at_least(1.0, np.mean(np.array(alone) > 0), of="share of the moments at which it rises"),
            null=float(rises),
            null_description="share where the other last token's sequences are learned, too",
            evidence=evidence,
        ),
    ]


CHECKS: dict[str, Callable[[], list[Claim]]] = {"snap_local": snap_local}
