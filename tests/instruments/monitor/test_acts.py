"""From alarm to act: what is clipped, lowered, put back, and what is refused."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from joma.core.errors import InputError
from joma.instruments.monitor.acts.actor import CALM
from joma.instruments.monitor.acts.clip import Clip, scale_head, why_not
from joma.instruments.monitor.acts.rate import LOWERED
from joma.instruments.monitor.alarms.messages import Message
from joma.instruments.monitor.folder import read_messages
from joma.instruments.monitor.measuring.products import AttentionPlace, QueryKey, find_products
from joma.instruments.monitor.monitor import Monitor

WIDTH, HEADS = 16, 4


class Attention(nn.Module):
    """Causal attention with grouped queries, with or without norms of queries and keys."""

    def __init__(self, key_heads: int, *, normed: bool = False, bias: bool = True) -> None:
        super().__init__()
        self.size = WIDTH // HEADS
        self.q_proj = nn.Linear(WIDTH, WIDTH, bias=bias)
        self.k_proj = nn.Linear(WIDTH, key_heads * self.size, bias=bias)
        self.v_proj = nn.Linear(WIDTH, key_heads * self.size)
        self.o_proj = nn.Linear(WIDTH, WIDTH)
        self.normed = normed

    def heads(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        query, key, value = (
            part(x).unflatten(2, (-1, self.size)).transpose(1, 2)
            for part in (self.q_proj, self.k_proj, self.v_proj)
        )
        if self.normed:
            query, key = 20 * nn.functional.normalize(query, dim=-1), nn.functional.normalize(key, dim=-1)
        shared = HEADS // key.shape[1]
        return query, key.repeat_interleave(shared, 1), value.repeat_interleave(shared, 1)

    def largest(self, x: Tensor) -> list[float]:
        """The largest logit of each head among visible keys, dense, in float64."""
        query, key, _ = self.double().heads(x.double())
        logits = query @ key.mT / math.sqrt(self.size)
        logits = logits.masked_fill(torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1), -math.inf)
        found = logits.amax((0, 2, 3)).tolist()
        self.float()
        return found

    def forward(self, x: Tensor) -> Tensor:
        mixed = nn.functional.scaled_dot_product_attention(*self.heads(x), is_causal=True)
        return self.o_proj(mixed.transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, key_heads: int, *, normed: bool = False) -> None:
        super().__init__()
        self.self_attn = Attention(key_heads, normed=normed)
        self.mlp = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.self_attn(x)
        return x + self.mlp(x).relu()


class Model(nn.Module):
    def __init__(self, key_heads: int = HEADS, *, normed: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(Block(key_heads, normed=normed) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def products(model: nn.Module) -> list[QueryKey]:
    found, reasons = find_products(
        model, [AttentionPlace("", n, f"layers.{n}.self_attn", HEADS) for n in range(2)], []
    )
    assert not reasons
    return found


def alarm(step: int, since: int = 0) -> Message:
    return Message(step, "alarm", "loss", "loss", "the loss rose", since, "a test")


def raised(monitor: Monitor, *, at: int, since: int = 0) -> None:
    """Let an alarm come at a step."""
    judge = monitor._judge
    usual = judge.losses

    def losses(table):
        due = bool(((table["metric"] == "loss") & (table["step"] == at)).any())
        return [*usual(table), *([alarm(at, since)] if due else [])]

    judge.losses = losses


@pytest.mark.parametrize("key_heads", [4, 2, 1])
def test_a_clip_brings_the_largest_logit_to_the_limit_and_touches_no_other_head(key_heads: int) -> None:
    model = Model(key_heads)
    attention = model.layers[0].self_attn
    with torch.no_grad():
        attention.q_proj.weight *= 8
    x = torch.randn(3, 7, WIDTH)
    before, value = attention.largest(x), attention(x)
    logits = {("layers.0.self_attn", head): logit for head, logit in enumerate(before)}
    limit = sum(sorted(before)[1:3]) / 2
    told = Clip(limit, products(model)).apply(5, logits)
    after = attention.largest(x)
    for head in range(HEADS):
        if before[head] > limit:
            assert after[head] == pytest.approx(limit, rel=1e-6)
        else:
            assert after[head] == before[head]
    assert sum(one > limit for one in before) == 2
    assert "and of 1 more heads likewise" in told[0].what
    assert not torch.equal(attention(x), value)
    # Where nothing is beyond the limit the weights are not touched.
    value = attention(x)
    assert not Clip(1e6, products(model)).apply(6, dict(zip(logits, after, strict=True)))
    assert torch.equal(attention(x), value)


def test_scaling_a_head_scales_its_logits_with_biases_in_fused_weights() -> None:
    encoder = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 1, enable_nested_tensor=False
    )
    (one,), reasons = find_products(encoder, [AttentionPlace("", 0, "layers.0.self_attn", 2)], [])
    assert not reasons
    inner = encoder.layers[0].self_attn
    with torch.no_grad():
        inner.in_proj_bias.normal_()
    x = torch.randn(5, 8)

    def logits() -> Tensor:
        query, key = nn.functional.linear(x, inner.in_proj_weight, inner.in_proj_bias)[:, :16].split(8, 1)
        return torch.einsum("ihd,jhd->hij", query.view(5, 2, 4), key.view(5, 2, 4)).detach()

    before, rest = logits(), inner.in_proj_weight[16:].clone()
    scale_head(one, 1, 0.25)
    assert torch.equal(logits()[0], before[0])
    assert torch.allclose(logits()[1], 0.25 * before[1], atol=1e-6)
    assert torch.equal(inner.in_proj_weight[16:], rest)


def trained(monitor: Monitor, model: nn.Module, steps: int, rate: float = 1e-3) -> torch.optim.Optimizer:
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    generator = torch.Generator().manual_seed(1)
    for step in range(steps):
        x = torch.randn(3, 7, WIDTH, generator=generator)
        loss = (model(x) - x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        monitor.step(step, loss=loss)
    return optimizer


def acts_of(monitor: Monitor) -> Mapping[str, list[str]]:
    found: dict[str, list[str]] = {}
    for message in monitor.messages:
        if message.kind == "act":
            found.setdefault(message.metric, []).append(message.what)
    return found


def test_after_an_alarm_each_step_is_clipped_and_recorded(tmp_path: Path) -> None:
    model = Model()
    with torch.no_grad():
        model.layers[1].self_attn.q_proj.weight[:4] *= 40
    with Monitor(
        model, every=10, ranks_every=None, on_alarm="qk_clip", clip_at=4.0, folder=tmp_path / "live"
    ) as monitor:
        raised(monitor, at=10)
        trained(monitor, model, 30)
        told = acts_of(monitor)["qk_clip"]
        x = torch.randn(3, 7, WIDTH, generator=torch.Generator().manual_seed(9))
        # Rows that the batches did not have may go a little beyond.
        assert max(model.layers[1].self_attn.largest(model.layers[0](x))) < 8
        assert monitor._actor.looks
    assert "from here on each step is looked at" in told[0]
    assert "queries and keys of layer 1, head 0 were scaled" in told[1]
    assert "becomes 4" in told[1]
    kept = read_messages(tmp_path / "live")
    assert [one.kind for one in kept if one.kind == "act"]
    table = monitor.table()
    looked = table[table["metric"] == "largest_logit"]["step"].unique()
    assert sorted(looked) == [0, 10, 20]  # looks for clips alone are not recorded
    assert CALM == 100


def test_a_clip_that_does_nothing_is_taken_back() -> None:
    model = Model(normed=True)
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    monitor = Monitor(model, every=5, ranks_every=None, on_alarm="qk_clip", clip_at=1.0)
    with monitor:
        raised(monitor, at=5)
        trained(monitor, model, 12, rate=0.0)
    told = acts_of(monitor)["qk_clip"]
    assert any("whose logits did not follow its weights" in one for one in told)
    for name, weight in model.state_dict().items():
        assert torch.allclose(weight, before[name], rtol=1e-5), name


def test_rates_are_lowered_whatever_the_schedule_and_come_back() -> None:
    model = Model()
    with Monitor(model, every=2, ranks_every=None, on_alarm="lower_rate") as monitor:
        raised(monitor, at=2)
        trained(monitor, model, 3)
        optimizer = monitor._actor.optimizer
        assert optimizer is not None
        seen: list[float] = []
        optimizer.register_step_pre_hook(lambda one, *_: seen.append(one.param_groups[0]["lr"]))
        optimizer.step()
        assert seen == [pytest.approx(LOWERED * 1e-3)]
        assert optimizer.param_groups[0]["lr"] == 1e-3
    optimizer.step()
    assert seen[-1] == 1e-3
    assert "0.1 of what the schedule says" in acts_of(monitor)["lower_rate"][0]


def test_the_rate_of_queries_and_keys_alone() -> None:
    model = Model(2)
    with Monitor(model, every=2, ranks_every=None, on_alarm="lower_qk_rate") as monitor:
        raised(monitor, at=2)
        trained(monitor, model, 3)
        optimizer = monitor._actor.optimizer
        assert optimizer is not None
        before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
        gradients = {name: weight.grad.clone() for name, weight in model.named_parameters()}
        optimizer.step()
        for name, weight in model.named_parameters():
            share = LOWERED if "q_proj" in name or "k_proj" in name else 1.0
            expected = before[name] - share * 1e-3 * gradients[name]
            assert torch.allclose(weight, expected, atol=1e-7), name


def test_the_last_quiet_checkpoint_is_put_back(tmp_path: Path) -> None:
    model = Model()
    for step in (0, 2, 4):
        with torch.no_grad():
            model.layers[0].mlp.bias.fill_(step)
        save_file(model.state_dict(), tmp_path / f"checkpoint-{step}.safetensors")
    with Monitor(model, every=2, ranks_every=None, on_alarm="restore", restore=tmp_path) as monitor:
        raised(monitor, at=6, since=3)
        trained(monitor, model, 7, rate=0.0)
    assert torch.equal(model.layers[0].mlp.bias, torch.full((WIDTH,), 2.0))
    assert "checkpoint-2.safetensors" in acts_of(monitor)["restore"][0]


def test_a_function_restores_and_several_acts_take_turns(tmp_path: Path) -> None:
    called: list[int] = []
    with Monitor(
        Model(),
        every=2,
        ranks_every=None,
        on_alarm=("restore", "lower_rate"),
        restore=called.append,
    ) as monitor:
        products = monitor._between.gauge.products
        for number in range(3):
            monitor.messages += monitor._actor.answer(alarm(10 + number, since=7), products)
    assert called == [7]
    # No optimizer was seen: it is said, and nothing is raised.
    assert all("no optimizer" in one for one in acts_of(monitor)["lower_rate"])
    empty = Monitor(Model(), every=2, on_alarm=("restore", "lower_rate"), restore=tmp_path)
    told = empty._actor.answer(alarm(3, since=1), [])
    assert [one.metric for one in told] == ["restore", "lower_rate"]
    assert "holds no checkpoint of step 1 or before" in told[0].what


def test_what_cannot_be_done_is_refused_in_a_sentence(tmp_path: Path) -> None:
    model = Model()
    with pytest.raises(InputError, match="has no checkpoints; give restore="):
        Monitor(model, on_alarm="restore")
    with pytest.raises(InputError, match="moves no weight of this Model"):
        Monitor(model, on_alarm="lower_rate", optimizer=torch.optim.SGD(Model().parameters(), lr=1.0))
    with pytest.raises(InputError, match="optimizer = dict in Monitor"):
        Monitor(model, optimizer={})
    with pytest.raises(InputError, match="clip_at = 0"):
        Monitor(model, on_alarm="qk_clip", clip_at=0)
    with pytest.raises(InputError, match="'qk_clip'"):
        Monitor(model, on_alarm="clip")
    with pytest.raises(InputError, match="on_state = 'restore'"):
        Monitor(model, on_state="restore")
    (tmp_path / "file").write_text("x")
    with pytest.raises(InputError, match="is no folder"):
        Monitor(model, on_alarm="restore", restore=tmp_path / "file")


def test_shared_and_frozen_weights_are_left_alone() -> None:
    model = Model()
    first, second = products(model)
    assert why_not(first, [first, second]) == ""
    model.layers[0].self_attn.q_proj.weight.requires_grad_(False)
    assert why_not(first, [first, second]) == "its queries or keys are frozen"
    shared = QueryKey(
        AttentionPlace("", 0, "layers.1.self_attn", HEADS, calls=2), second.query, second.key, HEADS
    )
    assert "shared by several attentions" in why_not(shared, [shared])
    monitor = Monitor(model, on_alarm="qk_clip")
    (told,) = monitor._actor.answer(alarm(4), [first])
    assert "layers.0.self_attn: its queries or keys are frozen" in told.what
    assert told.sentence().startswith("step 4: qk_clip: it could not be done")
    monitor.close()


def test_a_checkpoint_of_another_model_is_put_back_nowhere(tmp_path: Path) -> None:
    model = Model()
    other = dict(Model(2).state_dict())
    save_file(other, tmp_path / "checkpoint-1.safetensors")
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    monitor = Monitor(model, on_alarm="restore", restore=tmp_path)
    (told,) = monitor._actor.answer(alarm(4, since=3), [])
    assert "it is another model's" in told.what
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())
    monitor.close()
