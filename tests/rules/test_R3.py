"""R3: the state_dict is found by what it is, whatever lies beside it, and nothing is run."""

from __future__ import annotations

import argparse
import collections
import datetime
import os
import pickle
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from checkpoint_files import near, rank_of, ranks, values
from drawn_names import assert_unheard_of, pairs, words
from joma.checkpoints.checkpoint import open_checkpoint
from joma.checkpoints.formats.folders import weight_files
from joma.checkpoints.formats.state_dicts import state_of
from joma.core.errors import InputError

UP = "layers.0.mlp.up_proj.weight"
WEIGHT = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
BESIDE: list[Any] = [
    torch.tensor(2.3),
    torch.get_rng_state(),
    np.float64(0.9),
    np.arange(3.0),
    np.random.default_rng(0),
    argparse.Namespace(lr=1e-3),
    Path("x"),
    datetime.datetime(2020, 1, 1),
    collections.deque([1.0]),
    collections.defaultdict(list, {"a": [1]}),
    nn.Linear(2, 2),
    {"state": {0: {"exp_avg": torch.zeros(6, 4)}}, "param_groups": [{"lr": 1e-3}]},
]


@settings(max_examples=25, deadline=None)
@given(
    st.lists(words, min_size=1, max_size=3),
    st.dictionaries(words, st.sampled_from(BESIDE), max_size=4),
    st.booleans(),
)
def test_at_any_depth_beside_anything(path: list[str], beside: dict[str, Any], zipped: bool) -> None:
    assert_unheard_of(*path, *beside)
    content: Any = {UP: WEIGHT}
    for key in reversed(path):
        content = {**{k: v for k, v in beside.items() if k not in path}, key: content}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "a.pt")
        torch.save(content, file, _use_new_zipfile_serialization=zipped)
        assert values(ranks(file)) == near(rank_of(WEIGHT))


@given(words)
def test_copies_are_named(word: str) -> None:
    assert_unheard_of(word)
    tensors, beside = state_of(
        {"model": {UP: WEIGHT}, word: {UP: 2 * WEIGHT}, f"{word}s": {"shadow": [WEIGHT]}}
    )
    assert torch.equal(tensors[UP], WEIGHT)
    assert set(beside) == {word, f"{word}s.shadow"}
    assert beside[word][1] == WEIGHT.numel()


@given(pairs())
def test_two_networks_are_both_read(names: list[str]) -> None:
    assert_unheard_of(*names)
    tensors, beside = state_of({name: {UP: WEIGHT} for name in names})
    assert set(tensors) == {f"{name}.{UP}" for name in names}
    assert not beside


class Act:
    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.target),)


class Unknown:
    """Pickles as a call of a function of the tests."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[object, tuple[Path]]:
        return make, (self.target,)


def make(target: Path) -> str:
    target.mkdir()
    return "made"


def test_nothing_is_run(tmp_path: Path) -> None:
    target, file = tmp_path / "made", tmp_path / "a.pt"
    torch.save({"model": {UP: WEIGHT}, "x": Unknown(target)}, file)
    assert values(ranks(file)) == near(rank_of(WEIGHT))
    torch.save({"model": {UP: WEIGHT}, "x": Act(target)}, file)
    with pytest.raises(InputError, match=r"would run code when it is unpickled \(posix.mkdir\)"):
        open_checkpoint(file)
    assert not target.exists()


class Whole(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mlp = nn.ModuleDict({"up_proj": nn.Linear(4, 6, bias=False)})


def test_a_module_that_was_pickled_whole(tmp_path: Path) -> None:
    model = nn.ModuleDict({"layers": nn.ModuleList([Whole()])})
    torch.save(model, tmp_path / "a.pt")
    truth = model.state_dict()[UP]
    assert values(ranks(tmp_path / "a.pt")) == near(rank_of(truth))


@given(words)
def test_files_beside_a_model(word: str) -> None:
    assert_unheard_of(word)
    for model in ("model.pt", "model.safetensors"):
        assert weight_files([f"{word}.safetensors", f"{word}.pt", model]) == [model]
    assert weight_files([f"{word}.safetensors", "adapter_model.safetensors"]) == [f"{word}.safetensors"]
    assert weight_files(["mp_rank_00_model_states.pt"]) == ["mp_rank_00_model_states.pt"]
    assert weight_files([f"mp_rank_0{i}_model_states.pt" for i in range(2)]) == []
    assert weight_files(["zero_pp_rank_0_mp_rank_00_model_states.pt"]) == []


@settings(max_examples=15, deadline=None)
@given(words, st.booleans(), st.booleans())
def test_in_a_list_beside_an_optimizer_or_in_pairs(word: str, pairs_of_names: bool, zipped: bool) -> None:
    assert_unheard_of(word)
    training = {"state": {0: {"exp_avg": torch.zeros(6, 4)}}, "param_groups": [{"lr": 1e-3}]}
    content: Any = ((word, {UP: WEIGHT}), ("step", 3)) if pairs_of_names else [{UP: WEIGHT}, training]
    with tempfile.TemporaryDirectory() as folder:
        torch.save(content, file := Path(folder, "a.pt"), _use_new_zipfile_serialization=zipped)
        assert values(ranks(file)) == near(rank_of(WEIGHT))


def test_files_of_numpy_and_plain_pickles_are_named(tmp_path: Path) -> None:
    arrays = {UP: WEIGHT.numpy()}
    torch.save({"net": arrays}, tmp_path / "a.pt")
    torch.save(arrays, tmp_path / "b.pt", _use_new_zipfile_serialization=False)
    (tmp_path / "c.pt").write_bytes(pickle.dumps(arrays))
    with open(tmp_path / "d.pt", "wb") as file:
        np.savez(file, **arrays)
    with open(tmp_path / "e.pt", "wb") as file:
        np.save(file, arrays[UP])
    for name, words_of in (
        ("a", "holds NumPy arrays"),
        ("b", "holds NumPy arrays"),
        ("c", "is a pickle that torch.save did not write"),
        ("d", "archive of NumPy"),
        ("e", "one array of NumPy"),
    ):
        with pytest.raises(InputError, match=words_of):
            ranks(tmp_path / f"{name}.pt")
    # The advice: each array by torch.from_numpy.
    torch.save({"net": {UP: torch.from_numpy(arrays[UP])}}, tmp_path / "a.pt")
    assert values(ranks(tmp_path / "a.pt")) == near(rank_of(WEIGHT))
