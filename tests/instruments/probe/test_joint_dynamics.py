"""The joint-dynamics index of whole models, against attentions, values and neurons taken one by one."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from joma.core.errors import InputError
from joma.instruments.probe.sections.joint_dynamics import joint_dynamics
from joma.instruments.reading.anatomy import find_blocks
from joma.instruments.reading.lent import Anatomy
from joma.models.decoder import Decoder

pytest.importorskip("transformers")

from probe_models import FAMILIES, tiny_model

FAST = ("llama", "gpt2", "gemma2", "gpt_neox", "bert", "opt", "qwen3", "olmo2")
CASES = [
    pytest.param(f, marks=() if f in FAST else pytest.mark.slow)
    for f in (
        *FAST,
        "phi",
        "mistral",
        "gemma3_text",
        "falcon",
        "mpt",
        "bloom",
        "albert",
        "distilbert",
        "gptj",
    )
]
LENGTH = 26


def batch_of(
    vocabulary: int, texts: int = 2, length: int = LENGTH, padding: str = "none"
) -> tuple[Tensor, Tensor]:
    tokens = torch.randint(3, vocabulary, (texts, length), generator=torch.Generator().manual_seed(5))
    mask = torch.ones_like(tokens, dtype=torch.bool)
    if padding != "none":
        wide = torch.full((texts, length + 6), 0)
        mask = torch.zeros_like(wide, dtype=torch.bool)
        inner = slice(6, None) if padding == "left" else slice(0, length)
        wide[:, inner], mask[:, inner] = tokens, True
        tokens = wide
    return tokens, mask


def seen_by(model: nn.Module, names: list[str], tokens: Tensor) -> tuple[dict[str, Tensor], Any]:
    """What modules were given, and what the model returned."""
    given: dict[str, Tensor] = {}
    handles = [
        model.get_submodule(n).register_forward_pre_hook(
            lambda _, args, n=n: given.update({n: args[0].detach()})
        )
        for n in names
    ]
    with torch.no_grad():
        output = model(tokens, output_attentions=True)
    for handle in handles:
        handle.remove()
    return given, output


def slopes_of_norm(model: nn.Module, name: str | None, width: int) -> Tensor:
    """The norm's derivative where the input is large, up to a factor: gain and centring, by differences."""
    if name is None:
        return torch.eye(width, dtype=torch.float64)
    norm = model.get_submodule(name)
    generator = torch.Generator().manual_seed(0)
    base = torch.randn(width, generator=generator)
    # d norm(x) / dx is P diag(...) in all directions but x itself; gain and centring show on a fixed scale.
    centred = type(norm).__name__ == "LayerNorm"
    gain = getattr(norm, "weight", None)
    assert gain is not None
    gain = gain.detach().double()
    if "Gemma" in type(norm).__name__:
        gain = gain + 1
    matrix = torch.diag(gain)
    if centred:
        matrix = matrix @ (torch.eye(width, dtype=torch.float64) - 1 / width)
    x = base.double() if not centred else base.double() - base.double().mean()
    bias = getattr(norm, "bias", None)
    direct = norm(base[None, None].float())[0, 0].detach().double()
    offset = 0 if bias is None else bias.detach().double()
    torch.testing.assert_close(
        matrix @ base.double() / x.square().mean().sqrt() + offset, direct, atol=1e-4, rtol=1e-4
    )
    return matrix


def brute_force(model: nn.Module, attentions: Any, tokens: Tensor) -> dict[tuple[int, int, str], float]:
    """(layer, head, sink) -> mean over queries and texts of the index, neuron by neuron."""
    blocks = find_blocks(model)
    names = [str(b.value_reader) for b in blocks]
    given, _ = seen_by(model, names, tokens)
    expected = {}
    for number, block in enumerate(blocks):
        reader = block if not block.parallel else blocks[number + 1] if number + 1 < len(blocks) else None
        if reader is None:
            continue
        neurons = reader.gate_matrix or reader.lower_matrix
        assert neurons is not None
        assert block.output_matrix is not None
        assert block.value_matrix is not None
        assert block.heads is not None
        assert block.key_value_heads is not None
        assert block.head_width is not None
        lower = Anatomy(model).take(neurons).double()
        width = lower.shape[1]
        read = lower @ slopes_of_norm(model, reader.mlp_norm, width)
        written = (
            slopes_of_norm(model, block.output_norm, width)
            @ Anatomy(model).take(block.output_matrix).double()
        )
        value = Anatomy(model).take(block.value_matrix).double()
        u = given[str(block.value_reader)].double()
        for head in range(block.heads):
            size = block.head_width
            group = head // (block.heads // block.key_value_heads)
            path = written[:, head * size : (head + 1) * size] @ value[group * size : (group + 1) * size]
            v = torch.einsum("kd,btd->bkt", read @ path, u)
            prediction = torch.stack([v[:, k].square() for k in range(v.shape[1])]).sum(0) / 2
            for sink in ("in", "out"):
                found = []
                for text in range(len(tokens)):
                    for query in range(tokens.shape[1]):
                        row = attentions[number][text, head, query].double().log()
                        seen = [i for i in range(len(row)) if row[i] > -math.inf]
                        kept = [i for i in seen if sink == "in" or i > 0]
                        if len([i for i in seen if i > 0]) >= 10:
                            found.append(np.corrcoef(row[kept], prediction[text, kept])[0, 1])
                expected[block.layer, head, sink] = float(np.mean(found))
    return expected


@pytest.mark.parametrize("family", CASES)
def test_family_against_neurons_one_by_one(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("mistral", "gemma2", "gemma3_text"):  # windows in which there is something to correlate
        monkeypatch.setitem(FAMILIES, name, {**FAMILIES[name], "sliding_window": 14})
    model = tiny_model(family)
    eager = tiny_model(family, "eager")
    with torch.no_grad():
        for one in (model, eager):
            for name, parameter in one.named_parameters():
                if "norm" in name.lower() or "ln" in name:
                    torch.manual_seed(len(name))
                    parameter.add_(torch.rand_like(parameter))
                if "q_proj" in name:  # no attention so small that its logarithm is lost
                    parameter.mul_(0.4)
    tokens, mask = batch_of(64)
    attentions = eager(tokens, output_attentions=True).attentions
    table = joint_dynamics(model, [(tokens, mask)], draws=2)
    whole = table[table["position"].isna() & (table["scale"] == "linear") & (table["given"] == "nothing")]
    index = whole[(whole["metric"] == "index") & whole["head"].notna()]
    if family == "albert":  # one block that runs twice: the last call, whose input was kept
        index = index[index["call"] == 1]
        attentions = attentions[1:]
    expected = brute_force(eager, [a.detach() for a in attentions], tokens)
    assert len(index) == len(expected)
    for row in index.itertuples():
        assert row.value == pytest.approx(expected[row.layer, row.head, row.sink], abs=2e-4), row
    unmeasured = table[table["reason"].fillna("") != ""]
    parallel = family in ("gpt_neox", "phi", "falcon", "gptj")
    assert len(unmeasured) == (1 if parallel else 0)
    if parallel:
        assert "parallel and the last" in unmeasured["reason"].iloc[0]
        assert (index["mlp_layer"] == index["layer"] + 1).all()
        assert math.isnan(unmeasured["value"].iloc[0])


@pytest.mark.parametrize("padding", ["left", "right"])
def test_padding_changes_nothing(padding: str) -> None:
    model = tiny_model("llama")
    plain = joint_dynamics(model, [batch_of(64)], draws=0)
    padded = joint_dynamics(model, [batch_of(64, padding=padding)], draws=0)
    keys = ["layer", "head", "metric", "scale", "given", "sink", "position"]
    both = plain.merge(padded, on=keys, suffixes=("", "_padded"))
    assert len(both) == len(plain) == len(padded)
    ranks = both["scale"] == "rank"  # every so many rows: others, where padding shifts them
    assert (both["count"] == both["count_padded"])[~ranks].all()
    compared = both[~ranks & (both["count"] > 0)]
    np.testing.assert_allclose(compared["value"], compared["value_padded"], atol=2e-4)


def torch_encoder(norm_first: bool, batch_first: bool) -> nn.Module:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 4, 24, dropout=0.0, norm_first=norm_first, batch_first=batch_first)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(64, 16)
            self.encoder = encoder

        def forward(self, tokens: Tensor) -> Tensor:
            hidden = self.embedding(tokens)
            if batch_first:
                return self.encoder(hidden)  # type: ignore[no-any-return]
            return self.encoder(hidden.transpose(0, 1)).transpose(0, 1)  # type: ignore[no-any-return]

    model = Model()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model.eval()


@pytest.mark.parametrize("norm_first", [False, True])
def test_torch_fast_path_is_the_slow_path(norm_first: bool) -> None:
    """Fused into one operation, batch or length first: the same index."""
    tables = [
        joint_dynamics(torch_encoder(norm_first, order), [batch_of(64)], draws=1) for order in (True, False)
    ]
    model = torch_encoder(norm_first, True)
    was = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        tables.append(joint_dynamics(model, [batch_of(64)], draws=1))
    finally:
        torch.backends.mha.set_fastpath_enabled(was)
    for other in tables[1:]:
        np.testing.assert_allclose(other["value"], tables[0]["value"], atol=1e-4, equal_nan=True)
    assert tables[0]["reason"].eq("").all()
    assert tables[0]["value"].notna().mean() > 0.7


@pytest.mark.parametrize("family", ["llama", "gpt2", "torch"])
def test_model_is_left_as_it_is(family: str) -> None:
    model = torch_encoder(False, True) if family == "torch" else tiny_model(family)
    tokens, mask = batch_of(64)
    outputs: list[Any] = []
    with torch.no_grad():
        before = model(tokens)
        handle = model.register_forward_hook(lambda _, __, output: outputs.append(output))
        joint_dynamics(model, [(tokens, mask)], draws=1)
        handle.remove()
        after = model(tokens)
    for output in (outputs[0], after):
        first, second = (o if isinstance(o, Tensor) else o[0] for o in (before, output))
        assert torch.equal(first, second)
    assert not torch.nn.modules.module._global_forward_pre_hooks
    assert not torch.nn.modules.module._global_forward_hooks


def test_decoder_of_the_paper_and_its_null() -> None:
    """Untrained, the index of a random decoder is no more than that of shuffled tokens is."""
    torch.manual_seed(0)
    model = Decoder(64, layers=2, width=16, hidden=24, heads=2, longest=64)
    batches = [batch_of(64, texts=8, length=48)]
    table = joint_dynamics(model, batches, draws=20, heads=[1])
    whole = table[table["position"].isna() & (table["given"] == "nothing") & table["head"].notna()]
    assert set(whole["head"]) == {1}
    assert set(whole["layer"]) == {0, 1}
    null = whole[(whole["metric"] == "null") & (whole["scale"] == "linear")]
    spread = whole[(whole["metric"] == "null_spread") & (whole["scale"] == "linear")]
    assert (null["value"].abs() < 5 * spread["value"].to_numpy() / 20**0.5 + 0.01).all()
    assert (spread["value"] < 0.1).all()
    # Position by position, the means make up the mean.
    parts = table[(table["metric"] == "index") & (table["head"] == 1) & (table["given"] == "nothing")]
    for _, part in parts.groupby(["layer", "scale", "sink"]):
        binned, total = part[part["position"].notna()], part[part["position"].isna()]
        assert binned["count"].sum() == total["count"].iloc[0]
        mean = (binned["value"] * binned["count"]).sum() / binned["count"].sum()
        assert mean == pytest.approx(total["value"].iloc[0])
        assert (binned["position_end"] > binned["position"]).all()


def test_same_seed_same_table() -> None:
    model = tiny_model("llama")
    tables = [joint_dynamics(model, [batch_of(64)], draws=3, seed=seed) for seed in (1, 1, 2)]
    assert tables[0].equals(tables[1])
    null = [table[table["metric"] == "null"]["value"] for table in tables]
    assert not null[0].equals(null[2])


def test_layers_that_cannot_be_measured_say_why(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match=r"no layer can be measured; first the MLP of layers.0 is a mixture"):
        joint_dynamics(tiny_model("mixtral"), [batch_of(64)])
    with pytest.raises(InputError, match="latent attention"):
        joint_dynamics(tiny_model("deepseek_v3"), [batch_of(64)])
    monkeypatch.setitem(FAMILIES, "qwen3_moe", {**FAMILIES["qwen3_moe"], "mlp_only_layers": [0]})
    table = joint_dynamics(tiny_model("qwen3_moe"), [batch_of(64)], draws=0)
    assert table[table["layer"] == 0]["reason"].eq("").all()
    experts = table[table["layer"] == 1]
    assert len(experts) == 1
    assert "mixture of 4 experts" in experts["reason"].iloc[0]
    assert math.isnan(experts["value"].iloc[0])


def test_a_norm_that_is_not_where_its_name_says_is_noticed() -> None:
    model = tiny_model("llama")
    layer = model.layers[1]
    layer.mlp.up_proj.register_forward_pre_hook(lambda _, args: (2 * args[0],))
    table = joint_dynamics(model, [batch_of(64)], draws=0)
    assert table[table["layer"] == 0]["reason"].eq("").all()
    # The hook changes what the layer reads behind the norm; global hooks run first, so it is not seen there.
    layer.mlp.register_forward_pre_hook(lambda _, args: (2 * args[0],))
    table = joint_dynamics(model, [batch_of(64)], draws=0)
    assert "does not read what" in table[table["layer"] == 1]["reason"].iloc[0]


def test_bad_input_is_refused() -> None:
    model = tiny_model("llama")
    tokens, mask = batch_of(64)
    with pytest.raises(InputError, match=r"no head 4 in layers.0.self_attn; its heads are 0 to 3"):
        joint_dynamics(model, [(tokens, mask)], heads=[4])
    with pytest.raises(InputError, match="no layer 7"):
        joint_dynamics(model, [(tokens, mask)], layers=[7])
    with pytest.raises(InputError, match="vocabulary"):
        joint_dynamics(model, [(tokens + 60, mask)])
    with pytest.raises(InputError, match="the text is empty"):
        joint_dynamics(model, [(tokens, torch.zeros_like(mask))])
    with pytest.raises(InputError, match="no MLP and no attention"):
        joint_dynamics(nn.Linear(3, 3), [(tokens, mask)])
    with torch.no_grad():
        model.layers[1].self_attn.v_proj.weight[0, 0] = math.nan
    table = joint_dynamics(model, [(tokens, mask)], draws=0)
    assert "not finite" in table[table["layer"] == 1]["reason"].iloc[0]
