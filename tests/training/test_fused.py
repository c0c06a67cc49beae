from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from joma.training.fused import ClippedAdam, OutputCrossEntropy


def tensors(seed: int, tokens: int, width: int, words: int, scale: float) -> list[torch.Tensor]:
    random = torch.Generator().manual_seed(seed)
    hidden = torch.randn(tokens, width, generator=random, dtype=torch.float64) * scale
    weight = torch.randn(words, width, generator=random, dtype=torch.float64)
    bias = torch.randn(words, generator=random, dtype=torch.float64)
    return [tensor.requires_grad_() for tensor in (hidden, weight, bias)]


@given(
    st.integers(0, 1000),
    st.integers(1, 9),
    st.integers(1, 6),
    st.integers(2, 40),
    st.sampled_from([0.01, 1.0, 100.0]),
)
def test_output_cross_entropy_equals_torchs(
    seed: int, tokens: int, width: int, words: int, scale: float
) -> None:
    ours = tensors(seed, tokens, width, words, scale)
    theirs = tensors(seed, tokens, width, words, scale)
    targets = torch.randint(0, words, (tokens,), generator=torch.Generator().manual_seed(seed))
    loss = OutputCrossEntropy()(*ours, targets)
    reference = F.cross_entropy(F.linear(*theirs), targets)
    torch.testing.assert_close(loss, reference, rtol=1e-11, atol=1e-11)
    (2.5 * loss).backward()
    (2.5 * reference).backward()
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-10, atol=1e-12)


def test_a_second_call_does_not_disturb_the_first_gradient() -> None:
    cross_entropy = OutputCrossEntropy()
    first, second = tensors(0, 5, 3, 7, 1.0), tensors(1, 4, 3, 7, 1.0)
    loss = cross_entropy(*first, torch.tensor([0, 1, 2, 3, 4]))
    cross_entropy(*second, torch.tensor([0, 1, 2, 3]))
    loss.backward()
    again = tensors(0, 5, 3, 7, 1.0)
    F.cross_entropy(F.linear(*again), torch.tensor([0, 1, 2, 3, 4])).backward()
    torch.testing.assert_close(first[1].grad, again[1].grad)


@pytest.mark.parametrize("clip", [None, 0.5, 1e9])
def test_clipped_adam_equals_clipping_and_adam(clip: float | None) -> None:
    torch.manual_seed(0)
    ours = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Tanh(), torch.nn.Linear(5, 2)).double()
    theirs = copy.deepcopy(ours)
    fused = ClippedAdam(ours.parameters(), learning_rate=0.02, clip=clip)
    plain = torch.optim.Adam(theirs.parameters(), lr=0.02)
    for _ in range(30):
        x = torch.randn(8, 4, dtype=torch.float64)
        for model in (ours, theirs):
            model.zero_grad()
            (model(x) ** 2 * 10).sum().backward()
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(theirs.parameters(), clip)
        fused.step()
        plain.step()
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        # The kernel takes its scale in float32.
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-7)
