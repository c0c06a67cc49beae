"""kappa and mu of a trained decoder, and the bounce that the block's law makes of them."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from joma.core.errors import InputError
from joma.measures.joint_dynamics import joint_dynamics_prediction, neuron_gram
from joma.measures.joint_rate import joint_rate
from joma.models.decoder import Decoder, DecoderLayer
from joma.theory.bounce_law import bounce_law
from joma.training.loop import Rows

WINDOWS = 40
"""Of the held-out text, for kappa."""
HIGHLY = 0.8
"""|cosine| above which the outputs of two neurons are highly correlated."""
COMPETING = 5
"""Of these, for the law, to which each is a set of tokens that compete."""


@torch.no_grad()
def block_rates(model: Decoder, windows: Tensor, step: int, *, law: bool, seed: int) -> Rows:
    """kappa and its share of the logits' variance, layer by layer; with ``law`` the predicted rebound.

    ``v_k(l)`` is what neuron k sees of token l through attention. If the block were at rest with
    ``z = kappa/2 sum_k v_k(l)^2``, then W(kappa mu_l^2) would be kappa sum_k v_k(l)^2, and the law gives the
    rebound, window by window. With kappa not positive it has none.
    """
    order = torch.randperm(windows.shape[1] - 1, generator=torch.Generator().manual_seed(seed)) + 1
    rows: Rows = []
    for number, (layer, x) in enumerate(_inputs(model, windows[:WINDOWS])):
        logits, prediction = _attention(layer, x)
        nearest = _nearest(layer.upper.weight)
        of_neurons = {
            "nearest_neuron": nearest.median(),
            "correlated_neurons": (nearest > HIGHLY).double().mean(),
        }
        rows += [
            {"step": step, "layer": number, "head": None, "metric": metric, "value": float(value), "unit": ""}
            for metric, value in of_neurons.items()
        ]
        shuffled = torch.cat([prediction[..., :1], prediction[..., order]], dim=-1)
        for suffix, half in (("", prediction), (", shuffled", shuffled)):
            try:
                kappa, share = joint_rate(logits, half)
            except InputError:  # nothing varies in an untrained layer of zeros
                kappa, share = 0.0, 0.0
            found = {"kappa": kappa, "kappa_share": share}
            if law:
                found |= _law(2.0 * kappa * half[:COMPETING, :, 1:].flatten(0, 1).cpu().numpy())
            rows += [
                {
                    "step": step,
                    "layer": number,
                    "head": None,
                    "metric": metric + suffix,
                    "value": value,
                    "unit": "",
                }
                for metric, value in found.items()
            ]
    return rows


def _nearest(upper: Tensor) -> Tensor:
    """Largest |cosine| of each hidden neuron's output vector with another's, (neurons,)."""
    unit = torch.nn.functional.normalize(upper.double(), dim=0)
    return (unit.T @ unit).abs().fill_diagonal_(0.0).amax(dim=1)


def _law(w: NDArray[np.float64]) -> dict[str, float]:
    """Saliency (median over windows) and rebound (mean) from W (windows, tokens)."""
    if not (w > 0).all():
        return {"saliency": 0.0, "block_rebound": 0.0}
    mu = np.sqrt(w) * np.exp(0.5 * np.minimum(w, 600.0))
    rebound = np.mean([bounce_law(one).rebound for one in mu])
    return {"saliency": float(np.median(mu.max(axis=1))), "block_rebound": float(rebound)}


def _inputs(model: Decoder, windows: Tensor) -> list[tuple[DecoderLayer, Tensor]]:
    """Every layer with what it is given."""
    layers: list[DecoderLayer] = list(model.layers)  # type: ignore[arg-type]
    seen: list[Tensor] = []
    hooks = [layer.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0])) for layer in layers]
    try:
        model.hidden_states(windows)
    finally:
        for hook in hooks:
            hook.remove()
    return list(zip(layers, seen, strict=True))


def _attention(layer: DecoderLayer, x: Tensor) -> tuple[Tensor, Tensor]:
    """Logits (batch, heads, tokens, tokens) and ``1/2 sum_k v_k(l)^2`` (batch, heads, tokens)."""
    batch, length, width = x.shape
    part = width // layer.heads
    split = layer.in_projection(x).view(batch, length, 3, layer.heads, part)
    query, key, value = split.permute(2, 0, 3, 1, 4)
    # The bias of the values adds the same for every token.
    value = value - layer.in_projection.bias[2 * width :].view(layer.heads, 1, part)
    gram = neuron_gram(
        layer.lower.weight,
        layer.out_projection.weight,
        layer.heads,
        gain=layer.attention_norm.weight,
        centres=True,
    )
    logits = torch.matmul(query * part**-0.5, key.transpose(-2, -1))
    return logits, joint_dynamics_prediction(value, gram)
