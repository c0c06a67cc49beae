"""One pass serves all sections, and what goes wrong in one is its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pandas
import pytest
import torch
from torch import nn

from joma.core.errors import InputError, UnfinishedError
from joma.instruments.probe import probe as probes
from joma.instruments.probe.probe import probe
from joma.instruments.probe.sections.salience import SalienceSection
from joma.instruments.reading.passes import Output
from joma.instruments.reading.shared import Part, Section, read
from joma.instruments.reading.texts import TokenBatch

pytest.importorskip("transformers")
from probe_models import tiny_model

SECTIONS = ("attention", "coherence", "joint_dynamics", "salience")


def language_model() -> nn.Module:
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    model: nn.Module = AutoModelForCausalLM.from_config(tiny_model("llama").config)
    return model.eval()


def text(rows: int = 6, length: int = 32) -> torch.Tensor:
    return torch.randint(3, 60, (rows, length), generator=torch.Generator().manual_seed(1))


class Counts(Section):
    """Remembers on what it ran."""

    def __init__(self, *, failing: int = -1) -> None:
        self.parts: list[Part] = []
        self.failing = failing

    @contextmanager
    def around_pass(self, part: Part) -> Iterator[None]:
        self.parts.append(part)
        yield

    def after_pass(self, part: Part, output: Output) -> None:
        if part.number == self.failing:
            raise InputError("no more")

    def make_tables(self) -> dict[str, pandas.DataFrame]:
        return {}


class Gradients(Counts):
    differentiable = True


def batches() -> list[TokenBatch]:
    return [TokenBatch(ids, torch.ones_like(ids, dtype=torch.bool)) for ids in text().split(3)]


def test_all_sections_of_a_probe_share_one_pass() -> None:
    model, runs = language_model(), []
    model.register_forward_hook(lambda module, given, output: runs.append(given[0].shape))
    together = probe(model, text(), sections=SECTIONS, null="none").tables
    # The trial whether the model is causal, and the text once.
    assert [tuple(shape) for shape in runs] == [(2, 16), (6, 32)]
    for section in SECTIONS:
        one = probe(model, text(), sections=[section]).tables
        pandas.testing.assert_frame_equal(one[section], together[section], rtol=1e-5, atol=1e-6)


def test_parts_of_a_batch_give_what_the_whole_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    model = language_model()
    whole = probe(model, text(), sections=SECTIONS, null="none", batch_tokens=96).tables
    monkeypatch.setattr("joma.instruments.reading.shared._TOKENS_AT_ONCE", 32)
    parts = probe(model, text(), sections=SECTIONS, null="none", batch_tokens=96).tables
    assert int(parts["coverage"]["calls"].sum()) == 3 * int(whole["coverage"]["calls"].sum())
    for section in ("attention", "positions", "coherence", "joint_dynamics"):
        pandas.testing.assert_frame_equal(parts[section], whole[section], rtol=1e-4, atol=1e-5)


def test_a_failure_ends_its_own_section_alone() -> None:
    model, fine, broken = language_model(), Counts(), Counts(failing=0)
    read(model, batches(), [broken, fine])
    assert [len(broken.parts), len(fine.parts)] == [1, 2]
    assert fine.tables() == {}
    with pytest.raises(InputError, match="no more"):
        broken.tables()


def test_encoder_layers_keep_their_fast_path() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    model = nn.Sequential(nn.Embedding(60, 8), nn.TransformerEncoder(layer, 2))
    plain, gradients = Counts(), Gradients()
    read(model, batches(), [plain, gradients])
    assert all(part.batch is part.whole for part in plain.parts)
    assert len(gradients.parts) == 2


def test_without_memory_for_gradients_the_others_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    def starved(self: SalienceSection, part: Part, output: Output) -> None:
        raise UnfinishedError("out of memory")

    monkeypatch.setattr(SalienceSection, "after_pass", starved)
    kept: list[str] = []
    keep = probes._keep_tables

    def noted(names: tuple[str, ...], *rest: object) -> dict[str, pandas.DataFrame]:
        tables = keep(names, *rest)  # type: ignore[arg-type]
        kept.extend(tables)
        return tables

    monkeypatch.setattr(probes, "_keep_tables", noted)
    with pytest.raises(UnfinishedError, match="out of memory"):
        probe(language_model(), text(), null="none")
    assert {"attention", "coherence", "joint_dynamics"} <= set(kept)
