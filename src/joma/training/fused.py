"""The two steps that dominate small models with large vocabularies, each in fewer passes over memory."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


class _OutputCrossEntropy(torch.autograd.Function):
    """Mean cross-entropy of softmax(hidden W' + b), its gradients computed on the way forward.

    The logits' buffer becomes the probabilities and then their gradient, in place: autograd's own
    chain (linear, log-softmax, nll) allocates three arrays of (tokens, vocabulary) at every step and
    passes over each. The mean's 1 / tokens is applied to the small arrays, not to the large one.
    """

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor, targets: Tensor, workspace: Tensor
    ) -> Tensor:
        count = hidden.shape[0]
        logits = torch.addmm(bias, hidden, weight.T, out=workspace)
        target_logits = logits.gather(1, targets.unsqueeze(1)).squeeze(1)
        top, where = logits.max(1)
        probabilities = torch.softmax(logits, 1, out=logits)
        # The largest probability is at least 1 / vocabulary, so its logarithm is safe.
        log_normaliser = top - probabilities.gather(1, where.unsqueeze(1)).squeeze(1).log()
        loss = (log_normaliser - target_logits).mean()
        gradient = probabilities.scatter_add_(1, targets.unsqueeze(1), logits.new_full((count, 1), -1.0))
        ctx.save_for_backward(
            (gradient @ weight).div_(count), gradient.T @ (hidden / count), gradient.sum(0).div_(count)
        )
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        hidden_gradient, weight_gradient, bias_gradient = ctx.saved_tensors
        if bool(upstream != 1.0):
            hidden_gradient = hidden_gradient * upstream
            weight_gradient = weight_gradient * upstream
            bias_gradient = bias_gradient * upstream
        return hidden_gradient, weight_gradient, bias_gradient, None, None


class OutputCrossEntropy:
    """Mean cross-entropy (nats) of an output layer, fused with it.

    Keeps one (tokens, vocabulary) buffer from step to step: at 28,782 words, asking the operating
    system for it anew costs as much as the softmax.
    """

    def __init__(self) -> None:
        self._workspace = torch.empty(0)

    def __call__(self, hidden: Tensor, weight: Tensor, bias: Tensor, targets: Tensor) -> Tensor:
        """The scalar that ``F.cross_entropy(F.linear(hidden, weight, bias), targets)`` gives.

        Args:
            hidden: (tokens, width); weight: (vocabulary, width); bias: (vocabulary,).
            targets: (tokens,) of int64.

        The gradients are the same too, to rounding; it can be differentiated once.
        """
        shape = (hidden.shape[0], weight.shape[0])
        needed = shape[0] * shape[1]
        if self._workspace.numel() < needed or self._workspace.dtype != hidden.dtype:
            self._workspace = hidden.new_empty(needed)
        workspace = self._workspace[:needed].view(shape)
        loss: Tensor = _OutputCrossEntropy.apply(  # type: ignore[no-untyped-call]
            hidden, weight, bias, targets, workspace
        )
        return loss


class ClippedAdam:
    """``torch.optim.Adam`` in one fused pass, with clipping by the gradients' norm folded into it.

    The same update as ``clip_grad_norm_(parameters, clip)`` followed by ``Adam.step()``, to
    rounding: the fused kernel divides the gradients by a scale as it reads them, so the clipping
    costs no pass of its own.
    """

    def __init__(self, parameters: Iterable[Tensor], *, learning_rate: float, clip: float | None) -> None:
        self.parameters = list(parameters)
        self.clip = clip
        self.adam = torch.optim.Adam(self.parameters, lr=learning_rate, fused=True)

    def step(self) -> None:
        """Update the parameters from their gradients."""
        if self.clip is not None:
            norm = torch.nn.utils.get_total_norm(p.grad for p in self.parameters if p.grad is not None)
            # clip_grad_norm_ multiplies by clip / (norm + 1e-6) where that is below 1.
            self.adam.grad_scale = ((norm + 1e-6) / self.clip).clamp_min(1.0).float()  # type: ignore[attr-defined]
            self.adam.found_inf = torch.zeros((), device=norm.device)  # type: ignore[attr-defined]
        self.adam.step()
