"""Every architecture of the installed transformers: what is large has a role, or is named as left out."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch

from joma.checkpoints.families.matrices import sort_out
from joma.checkpoints.families.sizes import config_of

transformers = pytest.importorskip("transformers")

DEPTHS = (
    "num_hidden_layers",
    "n_layer",
    "n_layers",
    "num_layers",
    "encoder_layers",
    "decoder_layers",
    "depth",
)
WITHOUT_LOWER = {
    "cpmant": "gate and lower lie one module deeper (ffn.ffn.w_in.w_0), where no name is known",
    "falcon_mamba": "Mamba: no MLP",
    "mamba": "Mamba: no MLP",
    "mamba2": "Mamba: no MLP",
    "rwkv": "its channel mixing has receptances, and names its matrices as attention does",
    "xlstm": "recurrent cells: no MLP of this kind",
    "zamba": "at two layers Mamba alone; the shared transformer comes later",
    "zamba2": "at two layers Mamba alone; the shared transformer comes later",
}
LEAST = 300
"""How many architectures can be built at least, so that the test cannot pass by building none."""


def shallow(config: object) -> object:
    for key in DEPTHS:
        if isinstance(depth := getattr(config, key, None), int) and depth > 2:
            setattr(config, key, 2)
    for inner in list(vars(config).values()):
        if hasattr(inner, "model_type"):
            shallow(inner)
    kinds = getattr(config, "layer_types", None)
    if isinstance(kinds, list):
        config.layer_types = [*kinds[:1], *kinds[-1:]]  # type: ignore[attr-defined]
    return config


def architectures() -> Iterator[tuple[str, bool, torch.nn.Module]]:
    for name, kind in sorted(transformers.CONFIG_MAPPING.items()):
        for change in (shallow, lambda config: config):
            try:
                config = change(kind())
                causal = type(config) in transformers.AutoModelForCausalLM._model_mapping
                auto = transformers.AutoModelForCausalLM if causal else transformers.AutoModel
                with torch.device("meta"):
                    model = auto.from_config(config)
            except Exception:  # whatever it lacks: sizes, packages, a class of models of its own
                continue
            yield name, causal, model
            break


@pytest.mark.slow
def test_each_large_parameter_of_every_architecture_has_a_role_or_is_named() -> None:
    without_lower, built = set(), 0
    for name, causal, model in architectures():
        built += 1
        shapes = {weight: tuple(tensor.shape) for weight, tensor in model.named_parameters()}
        found = sort_out(shapes, config_of(model))
        total = sum(math.prod(shape) for shape in shapes.values())
        measured = {matrix.tensor for matrix in found.matrices}
        for weight, shape in shapes.items():
            if len(shape) > 1 and math.prod(shape) >= 0.01 * total:
                told = (weight in measured) + (weight in found.unknown) + (weight in found.unclear)
                assert told == 1, f"{name}: {weight}"
        for matrix in found.matrices:
            with torch.device("meta"):
                rows, columns = matrix.take(torch.empty(shapes[matrix.tensor])).shape
            assert rows, f"{name}: {matrix}"
            assert columns, f"{name}: {matrix}"
        roles = {matrix.role for matrix in found.matrices}
        if causal and "lower" not in roles:
            without_lower.add(name)
    assert built >= LEAST
    assert without_lower == set(WITHOUT_LOWER)
