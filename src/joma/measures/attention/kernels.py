"""Attention kernels that return P V and the log-sum-exp of every row, checked before first use.

A kernel is ``kernel(query, key, value, causal, mask, scale) -> (P V, lse)``: query (batch, heads, rows,
width), key and value (batch, key heads, keys, width), causal from the top left, mask (rows, keys) or
(batch, heads, rows, keys) of 0 and -inf.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import torch
from torch import Tensor

Kernel = Callable[[Tensor, Tensor, Tensor, bool, Tensor | None, float], tuple[Tensor, Tensor]]


def flash_cpu(
    query: Tensor, key: Tensor, value: Tensor, causal: bool, mask: Tensor | None, scale: float
) -> tuple[Tensor, Tensor]:
    """PyTorch's flash attention on the CPU; float32 and float64, grouped queries as they are."""
    output, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        _rowwise(query), _rowwise(key), _rowwise(value), 0.0, causal, attn_mask=mask, scale=scale
    )
    return output, lse


def efficient_cuda(
    query: Tensor, key: Tensor, value: Tensor, causal: bool, mask: Tensor | None, scale: float
) -> tuple[Tensor, Tensor]:
    """PyTorch's memory-efficient attention on CUDA, in float32: one call per head of a group, so that no
    key is repeated; rows of masks padded to the kernel's alignment, widths to a multiple of four."""
    group = query.shape[1] // key.shape[1]
    width, rows, keys = query.shape[-1], query.shape[2], key.shape[2]
    if width % 4:
        query, key, value = (torch.nn.functional.pad(x, (0, -width % 4)) for x in (query, key, value))
    outputs, sums = [], []
    for member in range(group):
        part = torch.unflatten(query, 1, (-1, group))[:, :, member]
        bias = None
        if mask is not None:
            own = (
                mask
                if mask.dim() == 2 or mask.shape[1] == 1
                else torch.unflatten(mask, 1, (-1, group))[:, :, member]
            )
            bias = query.new_empty(*own.shape[:-1], keys + -keys % 8)[..., :keys].copy_(own)
            bias = bias.expand(*part.shape[:2], rows, keys)
        output, lse, *_ = torch.ops.aten._scaled_dot_product_efficient_attention(
            _rowwise(part), _rowwise(key), _rowwise(value), bias, True, 0.0, causal, scale=scale
        )
        outputs.append(output[..., :width])
        sums.append(lse[..., :rows])
    return torch.stack(outputs, 2).flatten(1, 2), torch.stack(sums, 2).flatten(1, 2)


def _rowwise(x: Tensor) -> Tensor:
    # The kernels take any strides but the last, and read past it in silence.
    return x if x.stride(-1) == 1 else x.contiguous()


@lru_cache
def kernel_for(device: torch.device, dtype: torch.dtype) -> Kernel | None:
    """The kernel of a device and dtype, if there is one and its log-sum-exp is right on a small block.

    Some back-ends return zeros, or the sum in base 2, in place of it; such a kernel is not used.
    """
    if device.type == "cpu":
        kernel = flash_cpu
    elif device.type == "cuda" and dtype == torch.float32:
        kernel = efficient_cuda
    else:
        return None
    return kernel if _agrees(kernel, device, dtype) else None


def _agrees(kernel: Kernel, device: torch.device, dtype: torch.dtype) -> bool:
    generator = torch.Generator().manual_seed(0)
    query, key = (torch.randn(1, heads, 40, 16, generator=generator, dtype=dtype) for heads in (4, 2))
    scores = (torch.unflatten(query, 1, (2, 2)).double() @ key.double()[:, :, None].mT).flatten(1, 2) * 0.5
    below = torch.ones(40, 40, dtype=torch.bool).tril()
    every_other = torch.ones(40, 40, dtype=torch.bool).tril(3)
    for causal, keep in ((False, None), (True, below), (False, every_other)):
        mask = None
        if keep is not None and not causal:
            mask = torch.zeros(40, 40, dtype=dtype).masked_fill(~keep, -torch.inf).to(device)
        try:
            output, lse = kernel(query.to(device), key.to(device), key.to(device), causal, mask, 0.5)
        except (RuntimeError, NotImplementedError, AttributeError):
            return False
        kept = scores if keep is None else scores.masked_fill(~keep, -torch.inf)
        value = torch.unflatten(kept.softmax(-1), 1, (2, 2)).matmul(key.double()[:, :, None]).flatten(1, 2)
        close = (lse.cpu() - kept.logsumexp(-1)).abs().max(), (output.cpu() - value).abs().max()
        if not max(float(x) for x in close) < 1e-5:
            return False
    return True
