"""What a norm does to a matrix behind it, read off its behaviour rather than its class."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from joma.core.errors import InputError


def norm_gain(norm: nn.Module, width: int) -> tuple[Tensor, bool]:
    """A norm's linear part, read off its behaviour: its gain (width,), float64, and whether it centres.

    ``norm(x) = gain * (x - mean(x) if it centres) / (its root mean square) + bias``, whatever the class
    and however it stores its gain (Gemma's holds gain - 1).

    Raises:
        InputError: a module that is no such function of x.
    """
    parameter = next(norm.parameters(), None)
    device = torch.device("cpu") if parameter is None else parameter.device
    dtype = torch.float32 if parameter is None else parameter.dtype
    generator = torch.Generator().manual_seed(0)
    size = 64.0  # beside which the epsilon of a norm is nothing
    sign = torch.where(torch.rand(width, generator=generator) < 0.5, -1.0, 1.0).double()
    centred = sign * (0.5 + torch.rand(width, generator=generator).double())
    centred = size * (centred - centred.mean())
    other = size * torch.randn(width, generator=generator).double()

    def at(x: Tensor) -> Tensor:
        normed: Tensor = norm(x.to(device, dtype)[None, None])
        return normed[0, 0].double().cpu()

    def apply_norm(x: Tensor, centring: bool) -> Tensor:
        given = x.to(dtype).double()
        given = given - given.mean() if centring else given
        return given / given.square().mean().sqrt()

    try:
        points = (centred, -centred, torch.full_like(centred, size), other)
        plus, minus, level, random = (at(point).detach() for point in points)
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        raise InputError(
            f"{type(norm).__name__} does not work on vectors of {width}: {error}".rstrip(".") + "."
        ) from None
    bias = (plus + minus) / 2
    scale = float((plus - minus).abs().max()) / 2
    if not scale > 0:
        raise InputError(f"{type(norm).__name__} gives nothing but a constant; its gain is zero.")
    centring = float((level - bias).abs().max()) < 1e-2 * scale
    # An entry near zero would divide by it: take that of the other vector, which is large there or nowhere.
    first, second = apply_norm(centred, centring), apply_norm(other, centring)
    use_first = first.abs() >= second.abs()
    gain = torch.where(use_first, (plus - minus) / 2 / first, (random - bias) / second)
    miss = float((gain * second + bias - random).abs().max())
    if miss > (1e-3 if dtype in (torch.float32, torch.float64) else 5e-2) * scale:
        raise InputError(
            f"{type(norm).__name__} is not a norm of the kind gain * x / root-mean-square(x) + bias (off by "
            f"{miss:.2g} of {scale:.2g}); its gain cannot be folded into a matrix."
        )
    return gain, centring
