from __future__ import annotations

import html
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from joma.core.errors import InputError
from joma.instruments.neurons import NeuronsSettings
from joma.instruments.neurons.page import neurons_of
from joma.instruments.neurons.probe import piece_of, probe_neurons
from joma.report.page import write_report
from joma.runs.directory import Run, run_experiment

pytest.importorskip("transformers")
from probe_models import tiny_model

TEXT = np.random.default_rng(0).integers(3, 60, 1200)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from transformers import AutoModelForCausalLM

    path = tmp_path_factory.mktemp("llama")
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(tiny_model("llama").config).save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def run(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    path = tmp_path_factory.mktemp("neurons")
    np.save(path / "ids.npy", TEXT)
    job = NeuronsSettings.of(
        model=str(folder), text=str(path / "ids.npy"), length=24, batch_tokens=96, top=8, show=3
    )
    return run_experiment(job, path / "run")


def test_run_directory(run: Run) -> None:
    of_model = {"neurons", "null", "layers", "contexts", "context_tokens", "model"}
    assert of_model | {"untrained_neurons", "untrained_layers"} == set(run.tables)
    neurons = run.tables["neurons"]
    assert len(neurons) == 2 * 48 * neurons["metric"].nunique()
    assert run.tables["model"]["tokens"].iloc[0] == 1200
    assert [claim.id for claim in run.claims] == [
        "neurons.exists",
        "neurons.learned",
        "neurons.unrelated",
        "neurons.different_queries",
        "neurons.selective",
    ]
    assert (run.directory / "figure.png").stat().st_size > 10_000
    contexts = run.tables["contexts"]
    assert len(contexts[["layer", "neuron"]].drop_duplicates()) == 3
    assert (
        contexts.groupby(["layer", "neuron"])["activation"].apply(lambda a: a.is_monotonic_decreasing).all()
    )
    json.dumps([claim.as_dict() for claim in run.claims])


def test_nothing_holds_of_a_model_that_has_learned_nothing(run: Run) -> None:
    assert run.tables["untrained_neurons"]["copy"].nunique() == 3
    assert "holds" not in {claim.verdict for claim in run.claims}
    assert {
        claim.verdict for claim in run.claims if claim.id in ("neurons.learned", "neurons.selective")
    } == {"fails"}


def test_untrained_networks_are_left_out_by_name(folder: Path) -> None:
    found = probe_neurons(folder, TEXT, length=24, batch_tokens=96, layers=[1], top=8, null="none")
    assert "untrained_neurons" not in found.tables
    claims = NeuronsSettings().claims(found.tables)
    assert {claim.verdict for claim in claims} == {"not tested"}
    with pytest.raises(InputError, match="null = 'random' is unknown"):
        probe_neurons(folder, TEXT, null="random")


def test_a_model_as_an_object_stands_beside_its_untrained_copies_or_those_given() -> None:
    model, other = tiny_model("llama"), tiny_model("llama")
    drawn = probe_neurons(model, TEXT, length=24, batch_tokens=96, layers=[1], top=8, copies=1)
    given = probe_neurons(model, TEXT, length=24, batch_tokens=96, layers=[1], top=8, null=[other])
    assert list(drawn.tables["untrained_neurons"]["copy"].unique()) == [0]
    assert given.tables["untrained_neurons"]["value"].equals(given.tables["neurons"]["value"])
    assert not drawn.tables["untrained_neurons"]["value"].equals(drawn.tables["neurons"]["value"])


def test_text_for_the_terminal(run: Run) -> None:
    text = NeuronsSettings().terminal_text(run.tables)
    assert "p<=5%" in text
    first = run.tables["contexts"].iloc[0]
    assert f"layer {first['layer']} neuron {first['neuron']}: score" in text
    assert "**" in text


def test_report_shows_patterns_with_attended_tokens_in_bold(run: Run) -> None:
    page = write_report([run], run.directory / "report.html").read_text("utf-8")
    for neuron in neurons_of(run.tables):
        assert neuron.heading in page
        assert html.escape(neuron.numbers) in page
        for pattern in neuron.patterns:
            assert len(pattern.contexts) >= 3
        contexts = [c for p in neuron.patterns for c in p.contexts] + neuron.others
        assert len(contexts) == 8
        for context in contexts:
            assert sum(piece.query for piece in context.pieces) == 1
            for piece in context.pieces:
                if piece.bold:
                    assert f'<b title="attention {piece.weight}">{html.escape(piece.text)}</b>' in page


def test_tables_of_another_run_have_no_such_part() -> None:
    assert neurons_of({}) == []


def test_neurons_by_number_are_shown_whatever_their_score(folder: Path) -> None:
    found = probe_neurons(folder, TEXT, length=24, batch_tokens=96, layers=[1], neurons=[5, 2], top=8)
    contexts = found.tables["contexts"]
    assert set(zip(contexts["layer"], contexts["neuron"], strict=True)) == {(1, 2), (1, 5)}
    assert set(found.tables["neurons"]["neuron"]) == {2, 5}


class Tokenizer:
    """As much of a tokenizer as turns ids into text."""

    def __init__(self, vocabulary: list[str]) -> None:
        self.vocabulary = vocabulary

    def get_vocab(self) -> dict[str, int]:
        return {token: number for number, token in enumerate(self.vocabulary)}

    def convert_ids_to_tokens(self, number: int) -> str:
        return self.vocabulary[number]

    def decode(self, ids: list[int]) -> str:
        return "".join(self.vocabulary[i] for i in ids).replace("\u0120", " ").replace("\u2581", "")


@pytest.mark.parametrize(
    ("vocabulary", "pieces"),
    [
        (["\u0120the", "ing", "##"], [" the", "ing", "##"]),
        (["\u2581the", "ing"], [" the", "ing"]),
        (["the", "##ing"], [" the", "ing"]),
    ],
)
def test_pieces(vocabulary: list[str], pieces: list[str]) -> None:
    piece = piece_of(Tokenizer(vocabulary))
    assert [piece(number) for number in range(len(vocabulary))] == pieces
    assert piece_of(None)(7) == " 7"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tokens": 5000}, "1200 tokens in windows, fewer than the 5000 asked for"),
        ({"layers": [9]}, "no layer 9"),
        ({"neurons": [48]}, "no neuron 48"),
        ({"top": 5}, "top = 5 contexts and smallest = 3"),
        ({"length": 65}, "at most 64"),
        ({"length": 600, "tokenizer": None}, "at most 64"),
        ({"show": 0}, "show = 0"),
    ],
)
def test_bad_input(folder: Path, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        probe_neurons(folder, TEXT, **{"length": 24, **settings})


def test_text_without_tokenizer(folder: Path) -> None:
    with pytest.raises(InputError, match="no tokenizer"):
        probe_neurons(folder, "some words", length=24)
