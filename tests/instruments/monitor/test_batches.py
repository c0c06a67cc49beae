"""Padded and packed batches, and encoders with decoders, against their sequences one by one."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn

from joma.instruments.monitor.monitor import Monitor

pytest.importorskip("transformers")
from probe_models import tiny_model

LENGTHS = (8, 5)
STATISTICS = ("attention_entropy", "residual_rms", "largest_logit")


def sequences() -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(1, 60, (length,), generator=generator) for length in LENGTHS]


def padded(left: bool = False) -> dict[str, Tensor]:
    ids = torch.zeros(len(LENGTHS), max(LENGTHS), dtype=torch.int64)
    mask = torch.zeros_like(ids)
    for row, own in enumerate(sequences()):
        some = slice(-len(own), None) if left else slice(len(own))
        ids[row, some], mask[row, some] = own, 1
    return {"input_ids": ids, "attention_mask": mask}


def looked(model: nn.Module, **inputs: Tensor) -> pd.Series:
    """The values of one look, by metric, layer, module and head."""
    model.train()
    for module in model.modules():  # one by one, a sequence would be dropped out of elsewhere
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        elif isinstance(getattr(module, "dropout", None), float):
            module.dropout = 0.0
    with Monitor(model, every=1, ranks_every=None) as monitor:
        model(**inputs, use_cache=False)
        monitor.step(0)
    table = monitor.table().assign(head=lambda rows: rows["head"].fillna(-1))
    table = table[table["metric"].isin(STATISTICS)]
    return table.set_index(["metric", "layer", "module", "head"])["value"]


def together(each: list[pd.Series], lengths: tuple[int, ...] = LENGTHS) -> pd.Series:
    """Of sequences one by one: means over their rows, of squares for the residual; the largest logit."""
    frame, weights = pd.concat(each, axis=1), np.array(lengths) / sum(lengths)
    metric = frame.index.get_level_values("metric")
    means = (
        (frame * weights)
        .sum(axis=1)
        .where(metric != "residual_rms", np.sqrt((frame**2 * weights).sum(axis=1)))
    )
    return means.where(metric != "largest_logit", frame.max(axis=1))


def one_by_one(model: nn.Module) -> pd.Series:
    return together([looked(model, input_ids=own[None]) for own in sequences()])


def agree(batch: pd.Series, expected: pd.Series) -> None:
    assert set(batch.index.get_level_values("metric")) == set(STATISTICS)
    pd.testing.assert_series_equal(batch, expected[batch.index], rtol=2e-4, check_names=False)


@pytest.mark.parametrize("left", [False, True])
def test_padding_is_left_out(left: bool) -> None:
    model = tiny_model("llama")
    inputs = padded(left)
    positions = (inputs["attention_mask"].cumsum(1) - 1).clamp_min(0)
    agree(looked(model, **inputs, position_ids=positions), one_by_one(model))


def test_packed_sequences_do_not_see_each_other() -> None:
    model = tiny_model("llama")
    ids = torch.cat(sequences())[None]
    positions = torch.cat([torch.arange(length) for length in LENGTHS])[None]
    agree(looked(model, input_ids=ids, position_ids=positions), one_by_one(model))


def test_an_encoder_and_its_decoder_are_both_there() -> None:
    model = tiny_model("t5")
    start = torch.tensor([[0, 7, 9, 11]])
    each = [looked(model, input_ids=own[None], decoder_input_ids=start) for own in sequences()]
    batch = looked(model, **padded(), decoder_input_ids=start.expand(2, -1))
    encoder = batch.index.get_level_values("module").str.startswith("encoder")
    assert encoder.any()
    assert not encoder.all()
    agree(batch[encoder], together(each)[batch.index[encoder]])
    agree(batch[~encoder], together(each, (4, 4))[batch.index[~encoder]])


def test_a_layer_that_adds_nothing_is_dead() -> None:
    model = tiny_model("llama")
    alive, dead = model.layers
    with torch.no_grad():
        dead.self_attn.o_proj.weight.zero_()
        dead.mlp.down_proj.weight.zero_()
    read: list[Tensor] = []
    kept = alive.register_forward_hook(lambda _module, inputs, output: read.extend((inputs[0], output)))
    model.train()
    with Monitor(model, every=1, ranks_every=None) as monitor:
        for step in range(2):
            model(input_ids=sequences()[0][None])
            monitor.step(step)
    kept.remove()
    table = monitor.table().query("metric == 'residual_update' and step == 0").set_index("layer")["value"]
    assert table[0] == pytest.approx(float((read[1] - read[0]).norm() / read[0].norm()), rel=1e-5)
    assert table[1] == 0.0
    (told,) = [message for message in monitor.messages if message.metric == "residual_update"]
    assert (told.kind, told.step) == ("state", 0)
    assert "layer 1" in told.sentence()
    assert "dead" in told.sentence()
