"""Where a model's parts are, against what happens when the model runs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from joma.checkpoints.families.norm_gain import norm_gain
from joma.core.errors import InputError
from joma.instruments.reading.anatomy import Block, find_blocks
from joma.instruments.reading.lent import Anatomy
from joma.models.decoder import Decoder
from joma.models.hierarchy import HierarchyNetwork

pytest.importorskip("transformers")

from probe_models import ENCODER_DECODERS, FAMILIES, FAST, tiny_batch, tiny_model

EXPERTS = ("mixtral", "qwen3_moe", "gpt_oss")
MORE = ("phi", "olmo2", "mixtral", "deepseek_v3", "mbart", "bart", "falcon")
CASES = [
    pytest.param(family, marks=() if family in (*FAST, *MORE) else pytest.mark.slow) for family in FAMILIES
]


class Record:
    """What went into and came out of every module, while the model ran."""

    def __init__(self, model: nn.Module) -> None:
        self.inputs: dict[str, Tensor] = {}
        self.outputs: dict[str, Tensor] = {}
        for name, module in model.named_modules():
            module.register_forward_hook(self._hook(name), with_kwargs=True)

    def _hook(self, name: str) -> Any:
        def hook(module: nn.Module, args: Any, kwargs: dict[str, Any], output: Any) -> None:
            given = next((a for a in (*args, *kwargs.values()) if isinstance(a, Tensor)), None)
            if given is not None:
                self.inputs[name] = given.detach().clone()
            if isinstance(output, Tensor):
                self.outputs[name] = output.detach().clone()

        return hook


def check_norms(block: Block, model: nn.Module, seen: Record) -> None:
    """The norms named are those whose outputs the parts were given, and None where there was no norm."""
    norms = [
        name
        for name, module in model.named_modules()
        if name.startswith(block.name + ".") and "norm" in type(module).__name__.lower()
    ]
    for part, claimed in ((block.lower, block.mlp_norm), (block.value_reader, block.attention_norm)):
        assert part is not None
        given = seen.inputs[part]
        givers = [n for n in norms if n in seen.outputs and torch.equal(seen.outputs[n], given)]
        assert ([claimed] if claimed else []) == givers, f"{part}: {givers}, not {claimed}"


def check_neurons(block: Block, model: nn.Module, seen: Record) -> None:
    """The upper layer's input is a function of each neuron's own row of the lower (and gate) matrix."""
    assert block.lower is not None
    assert block.upper is not None
    assert block.lower_matrix is not None
    activations = seen.inputs[block.upper].flatten(0, -2)
    x = seen.inputs[block.lower].flatten(0, -2)
    lower = x @ Anatomy(model).take(block.lower_matrix).T
    bias = getattr(model.get_submodule(block.lower), "bias", None)
    if isinstance(bias, Tensor) and len(bias) == lower.shape[1]:
        lower = lower + bias.detach()
    gate = None if block.gate_matrix is None else x @ Anatomy(model).take(block.gate_matrix).T
    assert activations.shape == lower.shape
    if gate is None:  # bounded from below: what is switched on has a positive argument
        on = activations > 0.2
        assert bool((lower[on] > 0).all())
    else:
        on = (gate > 0.2) & (lower.abs() > 0.2)
        assert bool((activations.sign() == lower.sign())[on].all())
        off = gate < -6
        assert bool((activations[off].abs() <= 0.02 * lower[off].abs() + 1e-6).all())


def check_values(block: Block, model: nn.Module, seen: Record, probabilities: Tensor) -> None:
    """sum_l p_l W_O W_V u_l, head by head, is attention's output, but for biases."""
    assert block.value_matrix is not None
    assert block.output_matrix is not None
    assert block.value_reader is not None
    assert block.heads is not None
    assert block.key_value_heads is not None
    value, output = Anatomy(model).take(block.value_matrix), Anatomy(model).take(block.output_matrix)
    u = seen.inputs[block.value_reader]
    values = (u @ value.T).unflatten(-1, (block.key_value_heads, block.head_width)).transpose(1, 2)
    values = values.repeat_interleave(block.heads // block.key_value_heads, 1)
    mixed = (probabilities @ values).transpose(1, 2).flatten(2)
    holder = block.output_matrix.tensor.rpartition(".")[0]
    truth = seen.outputs[holder]
    difference = truth - mixed @ output.T
    # Biases are the same for every token (attention sums to one).
    level = difference[0, 0]
    assert float((difference - level).abs().max()) < 1e-4 * float(truth.abs().max())


@pytest.mark.parametrize("family", CASES)
def test_family_is_taken_apart_as_it_runs(family: str) -> None:
    model = tiny_model(family, "eager")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name.lower() or "ln" in name:
                torch.manual_seed(len(name))
                parameter.add_(torch.rand_like(parameter))
    blocks = find_blocks(model)
    seen = Record(model)
    with torch.no_grad():
        outputs = model(**tiny_batch(family), output_attentions=True)
    assert len(blocks) == 4 if family in ENCODER_DECODERS else len(blocks) in (1, 2)
    for block in blocks:
        assert block.remarks == ()
        if family in EXPERTS:
            assert "mixture of 4 experts" in block.mlp_problem
            assert block.lower is None
        else:
            check_norms_and_neurons(block, model, seen, family)
        if family == "deepseek_v3":
            assert "latent attention" in block.attention_problem
            assert block.value_matrix is None
            continue
        if family in ENCODER_DECODERS:
            all_layers = (
                outputs.encoder_attentions if block.stack == "encoder" else outputs.decoder_attentions
            )
        else:
            all_layers = outputs.attentions
        if family not in ("deberta-v2", "gpt_oss", "mpt"):
            probabilities = all_layers[-1 if family == "albert" else block.layer]
            check_values(block, model, seen, probabilities)


def check_norms_and_neurons(block: Block, model: nn.Module, seen: Record, family: str) -> None:
    if family == "deepseek_v3":
        return
    check_norms(block, model, seen)
    check_neurons(block, model, seen)
    assert block.parallel == (family in ("gpt_neox", "gptj", "codegen", "phi", "cohere", "falcon"))


@pytest.mark.parametrize("family", ["gpt_neox", "stablelm"])
@pytest.mark.parametrize("parallel", [False, True])
def test_parallel_blocks_are_those_whose_mlp_does_not_see_attention(family: str, parallel: bool) -> None:
    from transformers import AutoConfig, AutoModel

    settings = {**FAMILIES[family], "use_parallel_residual": parallel}
    torch.manual_seed(0)
    model = AutoModel.from_config(AutoConfig.for_model(family, **settings)).eval()
    block = find_blocks(model)[0]
    assert block.parallel == parallel
    seen = Record(model)
    with torch.no_grad():
        model(**tiny_batch(family))
        before = seen.inputs[str(block.lower)]
        assert block.output_matrix is not None
        model.get_parameter(block.output_matrix.tensor).mul_(3)
        model(**tiny_batch(family))
    assert torch.equal(seen.inputs[str(block.lower)], before) == parallel


@pytest.mark.parametrize("norm_first", [False, True])
def test_torch_encoder_layers(norm_first: bool) -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 4, 24, norm_first=norm_first, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).train()
    blocks = find_blocks(model)
    seen = Record(model)
    model(torch.randn(2, 5, 16))
    assert [b.name for b in blocks] == ["layers.0", "layers.1"]
    for block in blocks:
        check_norms(block, model, seen)
        assert (block.attention, block.value_reader) == (f"{block.name}.self_attn",) * 2
        assert (block.heads, block.key_value_heads, block.head_width) == (4, 4, 4)
        assert block.value_matrix is not None
        taken = Anatomy(model).take(block.value_matrix)
        assert torch.equal(taken, model.get_parameter(block.value_matrix.tensor)[32:])


@pytest.mark.parametrize("which", ["decoder", "hierarchy"])
def test_joma_models(which: str) -> None:
    torch.manual_seed(0)
    tokens = torch.randint(0, 11, (2, 7))
    model: nn.Module
    if which == "decoder":
        model = Decoder(11, layers=2, width=16, hidden=24, heads=2, dropout=0.0).eval()
    else:
        model = HierarchyNetwork(11, 3, layers=2, width=16, hidden=24, heads=2)
    blocks = find_blocks(model)
    seen = Record(model)
    with torch.no_grad():
        if which == "decoder":
            model(tokens)
        else:  # whose own forward passes take shorter ways
            model.blocks[0](torch.randn(2, 7, 16), torch.zeros(7, 7))  # type: ignore[index,operator]
        assert len(blocks) == 2
        block = blocks[0]
        assert block.value_reader == f"{block.name}.in_projection"
        assert block.attention == block.name
        check_norms(block, model, seen)
        check_neurons(block, model, seen)
        x = seen.inputs[str(block.value_reader)]
        query, key, _ = (
            (x @ part.T).unflatten(-1, (2, 8)).transpose(1, 2)
            for part in model.get_submodule(block.value_reader).weight.chunk(3)  # type: ignore[union-attr]
        )
        scores = query @ key.transpose(-1, -2) / 8**0.5
        if which == "decoder":
            scores = scores + torch.full((7, 7), float("-inf")).triu(1)
        check_values(block, model, seen, scores.softmax(-1))


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 3)


def test_bad_input_is_refused() -> None:
    with pytest.raises(InputError, match="no MLP and no attention was found in Plain"):
        find_blocks(Plain())
    with pytest.raises(InputError, match="give a torch"):
        find_blocks("smollm")  # type: ignore[arg-type]
    with torch.device("meta"):
        model = Decoder(11, layers=1, width=8, hidden=8)
    matrix = find_blocks(model)[0].lower_matrix
    assert matrix is not None
    with pytest.raises(InputError, match="without values"):
        Anatomy(model).take(matrix)
    with pytest.raises(InputError, match="holds no weight"):
        Anatomy(Plain()).take(matrix)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("width", [5, 32])
def test_gain_of_norms(dtype: torch.dtype, width: int) -> None:
    torch.manual_seed(1)
    tolerance = 2e-2 if dtype == torch.bfloat16 else 1e-5
    gain = (0.5 + torch.rand(width)).to(dtype)
    rms = nn.RMSNorm(width, dtype=dtype)
    with torch.no_grad():
        rms.weight.copy_(gain)
    measured, centres = norm_gain(rms, width)
    torch.testing.assert_close(measured, gain.double(), rtol=tolerance, atol=tolerance)
    assert not centres
    layer_norm = nn.LayerNorm(width, dtype=dtype)
    with torch.no_grad():
        layer_norm.weight.copy_(gain)
        layer_norm.bias.normal_()
    measured, centres = norm_gain(layer_norm, width)
    torch.testing.assert_close(measured, gain.double(), rtol=10 * tolerance, atol=10 * tolerance)
    assert centres


def test_gain_of_gemma_is_one_more_than_its_weight() -> None:
    from transformers.models.gemma2.modeling_gemma2 import Gemma2RMSNorm

    norm = Gemma2RMSNorm(6)
    with torch.no_grad():
        norm.weight.copy_(torch.linspace(-0.5, 0.5, 6))
    measured, centres = norm_gain(norm, 6)
    torch.testing.assert_close(measured, 1 + norm.weight.detach().double(), atol=1e-5, rtol=0)
    assert not centres


@pytest.mark.parametrize("module", [nn.Tanh(), nn.Linear(4, 4), nn.Identity(), nn.LayerNorm(7)])
def test_what_is_no_norm_has_no_gain(module: nn.Module) -> None:
    with pytest.raises(InputError, match=r"not a norm of the kind|does not work on vectors"):
        norm_gain(module, 4)
