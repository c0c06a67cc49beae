"""R5: slices are no matrices."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from checkpoint_files import near, ranks, values
from drawn_names import assert_unheard_of, words
from joma.core.errors import InputError

UP = "layers.{}.mlp.up_proj.weight"
PATTERNS = (
    "{word}-rank-{i}",
    "{word}_rank{i}",
    "tp{i}_{word}",
    "consolidated.{i:02d}",
    "shard-0000{i}-{word}",
)


@settings(max_examples=25, deadline=None)
@given(words, st.sampled_from(PATTERNS), st.integers(2, 4), st.booleans())
def test_files_of_ranks_that_share_names_are_gathered_first(
    word: str, pattern: str, count: int, safe: bool
) -> None:
    assert_unheard_of(word)
    suffix, save = (".safetensors", save_file) if safe else (".pt", torch.save)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        files = [folder / (pattern.format(word=word, i=i) + suffix) for i in range(count)]
        for file in files:
            save({UP.format(0): torch.eye(4)}, file)
        for path in (folder, *files):
            with pytest.raises(InputError, match=r"slices of the same tensors.*gather them first"):
                ranks(path)
        for file in files[:-1]:
            file.unlink()
        with pytest.raises(InputError, match="gather them first"):  # the last one alone
            ranks(files[-1])


@settings(max_examples=10, deadline=None)
@given(words, st.integers(2, 4))
def test_files_of_ranks_that_hold_layers_of_their_own_are_shards(word: str, count: int) -> None:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for i in range(count):
            save_file({UP.format(i): torch.eye(4)}, folder / f"{word}-part-{i}.safetensors")
        assert values(ranks(folder)) == near(*[4.0] * count)


def test_checkpoints_of_a_series_are_no_slices(tmp_path: Path) -> None:
    for step in (100, 200):
        save_file({UP.format(0): torch.eye(4)}, tmp_path / f"step_{step}.safetensors")
    assert values(ranks(tmp_path / "step_200.safetensors")) == near(4.0)
    with pytest.raises(InputError, match=r"give the file that is meant .* gather them first"):
        ranks(tmp_path)


@settings(max_examples=25, deadline=None)
@given(words, st.sampled_from((1, 2, 4)), st.booleans(), st.booleans(), st.booleans())
def test_the_first_rank_alone_is_read_where_its_shapes_are_those_of_a_whole_model(
    word: str, world: int, by_rows: bool, told: bool, as_folder: bool
) -> None:
    assert_unheard_of(word)
    width, neurons, vocabulary = 8, 24, 16
    tokens = (vocabulary // world, width) if by_rows else (vocabulary, width // world)
    block = f"{word}.layers.0"
    weights = {
        f"{word}.embed_tokens.weight": torch.ones(tokens),
        f"{block}.self_attn.q_proj.weight": torch.eye(width)[: width // world],
        f"{block}.mlp.up_proj.weight": torch.eye(neurons, width)[: neurons // world],
    }
    config = {"hidden_size": width, "num_attention_heads": 4, "intermediate_size": neurons}
    with tempfile.TemporaryDirectory() as place:
        file = Path(place) / "consolidated.00.pth"
        torch.save(weights, file)
        if told:
            (Path(place) / "config.json").write_text(json.dumps(config | {"vocab_size": vocabulary}))
        path = Path(place) if as_folder else file
        if world == 1:
            assert len(ranks(path)) == 3 - 1
        else:
            with pytest.raises(InputError, match=r"gather them first.*or give the file a name without"):
                ranks(path)
