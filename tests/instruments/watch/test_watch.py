"""Watching models that are not of transformers: kernels, fast paths, softmax code, compiled models."""

from __future__ import annotations

import copy
import math
import pickle
import threading
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.modules import module as module_hooks

from joma.core.errors import InputError
from joma.instruments.watch.watch import watch
from joma.models.decoder import Decoder


def dense_entropy(query: Tensor, key: Tensor, scale: float, keep: Tensor | None = None) -> Tensor:
    """The oracle: the whole matrix in float64; (batch, heads, queries)."""
    scores = query.double() @ key.double().transpose(-1, -2) * scale
    if keep is not None:
        scores = scores.masked_fill(~keep, -torch.inf)
    return torch.special.entr(scores.softmax(-1)).sum(-1)


class Plain(nn.Module):
    """Attention without weights on the tensors it is given."""

    def __init__(self, how: str = "kernel", causal: bool = False) -> None:
        super().__init__()
        self.how, self.causal = how, causal

    def forward(self, query: Tensor, key: Tensor, mask: Tensor | None = None, dropout: float = 0.0) -> Tensor:
        if self.how == "kernel":
            return F.scaled_dot_product_attention(
                query, key, key, attn_mask=mask, is_causal=self.causal, dropout_p=dropout
            )
        scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
        if mask is not None:
            scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
        if self.how == "einsum":
            return torch.einsum("bhij,bhjd->bhid", scores.softmax(-1), key)
        probabilities = F.dropout(torch.softmax(scores, -1, dtype=torch.float32).to(key.dtype), dropout)
        return torch.matmul(probabilities, key)


def random_pair(batch: int, heads: int, queries: int, keys: int, size: int = 8) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(batch + 10 * heads + 100 * queries + keys)
    shape = (batch, heads, keys, size)
    return 2 * torch.randn(batch, heads, queries, size, generator=generator), torch.randn(
        shape, generator=generator
    )


def values(seen: Any, *, count: int | None = None) -> Tensor:
    table = seen.table()
    if count is not None:
        assert set(table["count"]) == {count}
    return torch.tensor(table["value"].to_numpy())


@pytest.mark.parametrize("how", ["kernel", "einsum", "matmul"])
@pytest.mark.parametrize("context", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_plain_code_by_every_route(how: str, context: Any) -> None:
    query, key = random_pair(2, 3, 5, 7)
    model = Plain(how)
    with context():
        plain = model(query, key)
        with watch(model) as seen:
            watched = model(query, key)
    assert torch.equal(plain, watched)
    expected = dense_entropy(query, key, 8**-0.5).mean((0, 2))
    torch.testing.assert_close(values(seen, count=10), expected, atol=2e-6, rtol=0)
    assert set(seen.coverage()["route"]) == {"kernel" if how == "kernel" else "softmax"}


@given(queries=st.integers(1, 9), keys=st.integers(1, 9), causal=st.booleans())
def test_kernel_rows_for_any_shape(queries: int, keys: int, causal: bool) -> None:
    query, key = random_pair(2, 2, queries, keys)
    keep = torch.ones(queries, keys, dtype=torch.bool).tril() if causal else None
    model = Plain(causal=causal)
    with watch(model, reduce="position") as seen:
        model(query, key)
    table = seen.table().sort_values(["head", "position"])
    expected = dense_entropy(query, key, 8**-0.5, keep).mean(0).flatten()
    assert table["value"].to_numpy() == pytest.approx(expected.numpy(), abs=2e-6)


@pytest.mark.parametrize("how", ["kernel", "matmul"])
def test_dropout_is_no_part_of_the_distribution(how: str) -> None:
    query, key = random_pair(2, 2, 6, 6)
    model = Plain(how)
    torch.manual_seed(3)
    plain = model(query, key, dropout=0.4)
    after = torch.get_rng_state()
    torch.manual_seed(3)
    with watch(model) as seen:
        watched = model(query, key, dropout=0.4)
    assert torch.equal(plain, watched)
    assert torch.equal(torch.get_rng_state(), after)
    expected = dense_entropy(query, key, 8**-0.5).mean((0, 2))
    torch.testing.assert_close(values(seen), expected, atol=2e-6, rtol=0)


def test_rows_without_keys_are_left_out() -> None:
    query, key = random_pair(1, 2, 4, 4)
    keep = torch.ones(1, 1, 4, 4, dtype=torch.bool).tril()
    keep[..., 1, :] = False
    model = Plain()
    with watch(model) as seen:
        model(query, key, keep)
    expected = dense_entropy(query, key, 8**-0.5, keep)[..., [0, 2, 3]].mean((0, 2))
    torch.testing.assert_close(values(seen, count=3), expected, atol=2e-6, rtol=0)


def test_gradients_and_autocast_are_untouched() -> None:
    query, key = random_pair(2, 2, 6, 6)
    gradients = []
    for watched in (False, True):
        leaf = query.clone().requires_grad_()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            if watched:
                with watch(model := Plain()) as seen:
                    model(leaf, key).sum().backward()
            else:
                Plain()(leaf, key).sum().backward()
        gradients.append(leaf.grad)
    assert torch.equal(*gradients)
    half = dense_entropy(query.bfloat16(), key.bfloat16(), 8**-0.5).mean((0, 2))
    torch.testing.assert_close(values(seen), half, atol=2e-6, rtol=0)


def test_a_router_or_an_output_softmax_is_no_attention() -> None:
    class Router(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            weights = x.softmax(-1)
            best = weights.topk(2, -1).values
            return (x * best.sum(-1, keepdim=True)) @ torch.ones(x.shape[-1], 3)

    model = Router()
    with watch(model) as seen:
        model(torch.randn(2, 5, 7))
    with pytest.raises(InputError, match="no attention was seen in Router"):
        seen.table()


def test_the_papers_decoder_against_its_observer() -> None:
    torch.manual_seed(0)
    model = Decoder(30, layers=2, width=16, heads=2, hidden=8).eval()
    tokens = torch.randint(0, 30, (3, 11))
    observed: list[Tensor] = []
    model.hidden_states(
        tokens, lambda _, p: observed.append(torch.special.entr(p.double()).sum(-1).mean((0, 2)))
    )
    with watch(model) as seen:
        model(tokens)
    torch.testing.assert_close(values(seen, count=33), torch.cat(observed), atol=2e-6, rtol=0)
    assert seen.table()["layer"].tolist() == [0, 0, 1, 1]


def encoder(norm_first: bool = False) -> nn.TransformerEncoder:
    torch.manual_seed(1)
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, norm_first=norm_first)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=not norm_first).eval()


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("arguments", ["none", "padding", "causal", "both"])
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_fast_path_of_the_encoder_layer(norm_first: bool, arguments: str) -> None:
    """The fused operation runs (same bits) and its entropies are those of the slow path."""
    model, hidden = encoder(norm_first), torch.randn(2, 5, 16)
    given: dict[str, Any] = {}
    if arguments in ("padding", "both"):
        given["src_key_padding_mask"] = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    if arguments in ("causal", "both"):
        given["mask"] = torch.ones(5, 5, dtype=torch.bool).triu(1)
    with torch.no_grad():
        plain = model(hidden, **given)
        with watch(model) as fast:
            assert torch.equal(model(hidden, **given), plain)
        torch.backends.mha.set_fastpath_enabled(False)
        try:
            with watch(model) as slow:
                model(hidden, **given)
        finally:
            torch.backends.mha.set_fastpath_enabled(True)
    assert set(fast.coverage()["route"]) == {"fused"}
    assert set(slow.coverage()["route"]) == {"kernel"}
    count = 8 if "src_key_padding_mask" in given else 10
    torch.testing.assert_close(values(fast, count=count), values(slow, count=count), atol=3e-6, rtol=0)
    assert torch.backends.mha.get_fastpath_enabled()


@pytest.mark.parametrize("need_weights", [False, True])
def test_multihead_attention_self_and_cross(need_weights: bool) -> None:
    torch.manual_seed(2)
    model = nn.MultiheadAttention(16, 4, batch_first=True).eval()
    queries, memory = torch.randn(2, 5, 16), torch.randn(2, 7, 16)
    for key in (queries, memory):
        for context in (torch.no_grad, torch.enable_grad):
            with context(), watch(model) as seen:
                _, weights = model(queries, key, key, need_weights=need_weights, average_attn_weights=False)
            _, weights = model(queries, key, key, average_attn_weights=False)
            expected = torch.special.entr(weights.detach().double()).sum(-1).mean((0, 2))
            torch.testing.assert_close(values(seen, count=10), expected, atol=3e-6, rtol=0)


def test_key_padding_mask_of_multihead_attention_leaves_its_rows_out() -> None:
    torch.manual_seed(2)
    model = nn.MultiheadAttention(16, 4, batch_first=True)
    hidden = torch.randn(2, 5, 16)
    padding = torch.tensor([[False] * 5, [False] * 2 + [True] * 3])
    with watch(model) as seen:
        model(hidden, hidden, hidden, key_padding_mask=padding, need_weights=False)
    _, weights = model(hidden, hidden, hidden, key_padding_mask=padding, average_attn_weights=False)
    entropy = torch.special.entr(weights.detach().double()).sum(-1)
    expected = (entropy * ~padding[:, None]).sum((0, 2)) / 7
    torch.testing.assert_close(values(seen, count=7), expected, atol=3e-6, rtol=0)


def test_compiled_models_run_eagerly_while_watched() -> None:
    model = Plain(causal=True)
    compiled = torch.compile(model, backend="eager")
    query, key = random_pair(1, 2, 6, 6)
    compiled(query, key)
    for watched in (compiled, model):
        with watch(watched) as seen:
            compiled(query, key)
        expected = dense_entropy(query, key, 8**-0.5, torch.ones(6, 6, dtype=torch.bool).tril()).mean((0, 2))
        torch.testing.assert_close(values(seen), expected, atol=2e-6, rtol=0)
    from torch._dynamo.eval_frame import _stance

    assert _stance.stance == "default"


def test_traced_graphs_are_seen() -> None:
    query, key = random_pair(1, 2, 6, 6)
    traced = torch.jit.trace(Plain(), (query, key))
    with watch(traced) as seen:
        traced(query, key)
    expected = dense_entropy(query, key, 8**-0.5).mean((0, 2))
    torch.testing.assert_close(values(seen), expected, atol=2e-6, rtol=0)


def test_everything_is_restored_after_an_error_and_the_watch_goes_on() -> None:
    class Failing(Plain):
        def forward(self, *args: Any, **kwargs: Any) -> Tensor:
            out = super().forward(*args, **kwargs)
            if self.how == "kernel":
                raise RuntimeError("broken on purpose")
            return out

    model = Failing()
    query, key = random_pair(1, 1, 4, 4)
    hooks = (len(module_hooks._global_forward_hooks), len(module_hooks._global_forward_pre_hooks))
    seen = watch(model)
    with pytest.raises(RuntimeError, match="on purpose"), seen:
        model(query, key)
    assert torch._C._len_torch_dispatch_stack() == 0
    assert (len(module_hooks._global_forward_hooks), len(module_hooks._global_forward_pre_hooks)) == hooks
    assert not model._forward_pre_hooks
    model.how = "matmul"
    with seen, seen:  # inside itself it is one watch
        model(query, key)
    model(query, key)  # unwatched
    assert seen.table()["step"].tolist() == [0, 1]
    assert seen.coverage()["calls"].tolist() == [2]


def test_a_model_copied_or_pickled_while_it_is_watched_takes_nothing_along() -> None:
    model = nn.MultiheadAttention(8, 2, batch_first=True).eval()
    tokens = torch.randn(2, 5, 8)
    padding = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    with watch(model) as seen:
        model(tokens, tokens, tokens, key_padding_mask=padding)
        assert model._forward_pre_hooks  # the watch's own
        content = pickle.dumps(model)
        copies = [copy.deepcopy(model), pickle.loads(content)]
    assert b"joma" not in content  # such a file can be read where joma is not installed
    expected = model(tokens, tokens, tokens, key_padding_mask=padding)[0]
    for other in copies:
        assert not any("joma" in str(hook) for hook in other._forward_pre_hooks.values())
        torch.testing.assert_close(other(tokens, tokens, tokens, key_padding_mask=padding)[0], expected)
    assert seen.coverage()["calls"].tolist() == [1]


def test_a_watch_is_left_in_the_thread_that_entered_it() -> None:
    model = Plain()
    query, key = random_pair(1, 1, 4, 4)
    said: list[str] = []

    def leave() -> None:
        with pytest.raises(InputError, match="another thread") as caught:
            seen.__exit__(None, None, None)
        said.append(str(caught.value))

    with watch(model) as seen:
        other = threading.Thread(target=leave)
        other.start()
        other.join()
        model(query, key)  # still watched
    assert said
    assert seen.coverage()["calls"].tolist() == [1]
    assert torch._C._len_torch_dispatch_stack() == 0


def test_steps_can_be_named() -> None:
    model = Plain()
    query, key = random_pair(1, 1, 4, 4)
    with watch(model) as seen:
        model(query, key)
        seen.step = 500
        model(query, key)
        model(query, key)
    assert seen.table()["step"].tolist() == [0, 500, 501]


def test_an_opaque_attention_is_an_error_and_can_be_left_out() -> None:
    @torch.library.custom_op("joma_test::my_flash_attention", mutates_args=())
    def my_flash_attention(query: Tensor, key: Tensor) -> Tensor:
        return query + key.sum()

    class Opaque(nn.Module):
        def forward(self, query: Tensor, key: Tensor) -> Tensor:
            return my_flash_attention(query, key)

    model = nn.Sequential()
    model.add_module("plain", Plain())
    model.add_module("opaque", Opaque())
    model.forward = lambda q, k: model.opaque(model.plain(q, k), k)  # type: ignore[method-assign]
    query, key = random_pair(1, 1, 4, 4)
    with watch(model) as seen:
        model(query, key)
    assert seen.coverage()["status"].tolist() == ["measured", "not measured"]
    with pytest.raises(InputError, match=r"opaque: joma_test\.my_flash_attention"):
        seen.table()
    with watch(model, layers=["plain"]) as seen:
        model(query, key)
    assert len(seen.table()) == 1


def test_sampled_rows_estimate_the_mean() -> None:
    query, key = random_pair(1, 2, 512, 512)
    model = Plain(causal=True)
    with watch(model) as whole, watch(model, rows=1 / 8) as sampled:
        model(query, key)
    table = sampled.table()
    assert table["count"].tolist() == [64, 64]
    away = (values(sampled) - values(whole)).abs()
    assert (table["standard_error"] > 0).all()
    assert bool((away < 4 * torch.tensor(table["standard_error"].to_numpy())).all())


def test_statistics_by_name() -> None:
    query, key = random_pair(1, 1, 6, 6)
    model = Plain(causal=True)
    names = ["largest_probability", "normalised_entropy", "self_mass"]
    with watch(model, statistics=names, reduce="position") as seen:
        model(query, key)
    scores = (query.double() @ key.double().mT / 8**0.5).masked_fill(
        torch.ones(6, 6, dtype=torch.bool).triu(1), -torch.inf
    )
    p = scores.softmax(-1)[0, 0]
    table = seen.table().set_index(["metric", "position"])["value"]
    assert table["largest_probability"].to_numpy() == pytest.approx(p.amax(-1).numpy(), abs=1e-6)
    assert table["self_mass"].to_numpy() == pytest.approx(p.diagonal().numpy(), abs=1e-6)
    normalised = torch.special.entr(p).sum(-1)[1:] / torch.arange(2, 7).double().log()
    assert table["normalised_entropy"].to_numpy() == pytest.approx(normalised.numpy(), abs=1e-6)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"statistics": ["entrpy"]}, "did you mean 'entropy'"),
        ({"statistics": []}, "statistics is empty"),
        ({"reduce": "median"}, "'median'"),
        ({"layers": []}, "chooses no layer"),
        ({"layers": [1.5]}, "holds 1.5"),
        ({"rows": 2.0}, "rows = 2.0"),
    ],
)
def test_bad_input(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        watch(Plain(), **arguments)


def test_bad_models_and_passes_say_what_to_do() -> None:
    with pytest.raises(InputError, match=r"torch\.nn\.Module"):
        watch(torch.softmax)  # type: ignore[arg-type]
    model = Plain()
    query, key = random_pair(1, 1, 4, 4)
    with watch(model) as seen:
        pass
    with pytest.raises(InputError, match="no forward pass of Plain"):
        seen.table()
    with watch(model) as seen:
        model.forward(query, key)
    with pytest.raises(InputError, match="ran outside every module"):
        seen.table()
    with watch(nn.Sequential(model), layers=[7]) as seen:
        model(query, key)
    with pytest.raises(InputError, match=r"layers = \[7\]"):
        seen.table()


def test_scores_that_overflow_are_called_that() -> None:
    class Plain(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x @ x.transpose(-1, -2)).softmax(-1) @ x

    model = Plain()
    with watch(model) as seen:
        model(torch.full((1, 1, 4, 8), 300.0, dtype=torch.float16))
    with pytest.raises(InputError, match="own scores overflow in float16: their largest is inf"):
        seen.table()
