"""A small GPT-NeoX, trained by the Hugging Face Trainer into real ``checkpoint-*`` folders."""

from __future__ import annotations

import contextlib
import importlib.util
import io
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from joma.core.errors import InputError
from joma.experiments.joma_paper.fig7 import Fig7
from joma.instruments.reading.remarks import without_remarks_on_import


class _Windows(Dataset[dict[str, Tensor]]):
    """Non-overlapping windows of a text, each its own target."""

    def __init__(self, tokens: NDArray[np.int64], length: int) -> None:
        count = len(tokens) // length
        self._rows = torch.from_numpy(tokens[: count * length].reshape(count, length).copy())

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"input_ids": self._rows[index], "labels": self._rows[index]}


def train(settings: Fig7, seed: int, tokens: NDArray[np.int64], vocabulary: int, folder: Path) -> None:
    """Train one model; its checkpoints lie in the folder afterwards.

    Raises:
        InputError: the package transformers, or accelerate, is not installed.
    """
    if any(importlib.util.find_spec(name) is None for name in ("accelerate", "transformers")):
        raise InputError("training with the Hugging Face Trainer needs: pip install 'joma[hf]'.")
    with without_remarks_on_import():
        _train(settings, seed, tokens, vocabulary, folder)


def saved_steps(steps: int, checkpoints: int) -> list[int]:
    """When checkpoints are written: closer at first, as those of Pythia; the last at the end."""
    spaced = np.geomspace(max(1, steps // 120), steps, checkpoints)
    wanted = [round(float(step)) for step in spaced]
    for number in range(1, checkpoints):
        wanted[number] = max(wanted[number], wanted[number - 1] + 1)
    for number in range(checkpoints):
        wanted[number] = min(wanted[number], steps - (checkpoints - 1 - number))
    return wanted


def _train(settings: Fig7, seed: int, tokens: NDArray[np.int64], vocabulary: int, folder: Path) -> None:
    import transformers

    saved = saved_steps(settings.steps, settings.checkpoints)

    class Saves(transformers.TrainerCallback):
        def on_step_end(
            self,
            args: transformers.TrainingArguments,
            state: transformers.TrainerState,
            control: transformers.TrainerControl,
            **_: torch.Tensor,
        ) -> None:
            control.should_save = state.global_step in saved

    transformers.set_seed(seed)
    config = transformers.GPTNeoXConfig(
        vocab_size=vocabulary,
        hidden_size=settings.width,
        num_hidden_layers=settings.layers,
        num_attention_heads=settings.heads,
        intermediate_size=4 * settings.width,
        max_position_embeddings=settings.length,
        bos_token_id=0,
        eos_token_id=0,
    )
    arguments = transformers.TrainingArguments(
        output_dir=str(folder),
        max_steps=settings.steps,
        save_strategy="no",
        save_only_model=True,
        per_device_train_batch_size=settings.batch,
        learning_rate=settings.learning_rate,
        warmup_steps=max(1, settings.steps // 20),
        weight_decay=0.1,
        seed=seed,
        data_seed=seed,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        logging_strategy="no",
    )
    trainer = transformers.Trainer(
        model=transformers.GPTNeoXForCausalLM(config),
        args=arguments,
        train_dataset=_Windows(tokens, settings.length),
        callbacks=[Saves()],
    )
    # The Trainer prints its summary, and a bar for each checkpoint.
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        trainer.train()
