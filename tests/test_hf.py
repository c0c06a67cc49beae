from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from joma.probes.live.folder import read_table

transformers = pytest.importorskip("transformers")

from joma.hf import TrainingMonitor  # noqa: E402


def model() -> torch.nn.Module:
    config = transformers.LlamaConfig(
        vocab_size=17,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        tie_word_embeddings=False,
        intermediate_size=16,
        max_position_embeddings=16,
    )
    torch.manual_seed(0)
    net: torch.nn.Module = transformers.LlamaForCausalLM(config)
    return net


def trainer(folder: Path, callback: TrainingMonitor | None, steps: int, **arguments: object) -> object:
    rng = np.random.default_rng(0)
    ids = torch.tensor(rng.integers(0, 17, (64, 12)))
    data = [{"input_ids": row, "labels": row} for row in ids]
    settings = {
        "output_dir": str(folder),
        "max_steps": steps,
        "per_device_train_batch_size": 2,
        "report_to": [],
        "logging_steps": 1,
        "save_strategy": "no",
        "use_cpu": True,
        "lr_scheduler_type": "constant",
        "disable_tqdm": True,
        "seed": 1,
        **arguments,
    }
    return transformers.Trainer(
        model(),
        transformers.TrainingArguments(**settings),
        train_dataset=data,
        callbacks=[] if callback is None else [callback],
    )


@pytest.mark.parametrize("accumulated", [1, 3])
def test_steps_are_optimizer_steps_and_the_loss_is_untouched(tmp_path: Path, accumulated: int) -> None:
    plain = trainer(tmp_path / "plain", None, 6, gradient_accumulation_steps=accumulated)
    plain.train()  # type: ignore[attr-defined]
    callback = TrainingMonitor(every=2)
    watched = trainer(tmp_path / "watched", callback, 6, gradient_accumulation_steps=accumulated)
    watched.train()  # type: ignore[attr-defined]
    losses = [
        [entry["loss"] for entry in run.state.log_history if "loss" in entry]  # type: ignore[attr-defined]
        for run in (plain, watched)
    ]
    assert losses[0] == losses[1]
    table = read_table(tmp_path / "watched" / "joma-monitor")
    assert sorted(table[table["metric"] == "entropy"]["step"].unique()) == [2, 4, 6]
    assert table[table["metric"] == "gradient_norm"]["step"].tolist() == list(range(1, 7))
    assert table[table["metric"] == "loss"]["value"].tolist() == losses[0]
    counts = table[(table["metric"] == "entropy") & (table["step"] == 2)]["count"]
    assert set(counts) == {2 * 12 * accumulated}


def test_a_resumed_run_continues_its_table(tmp_path: Path) -> None:
    whole = trainer(tmp_path / "whole", TrainingMonitor(every=2), 8)
    whole.train()  # type: ignore[attr-defined]
    folder = tmp_path / "parts"
    saving = {"save_strategy": "steps", "save_steps": 4}
    first = trainer(folder, TrainingMonitor(every=2), 8, **saving)
    first.args.max_steps = 6  # type: ignore[attr-defined]
    first.train()  # type: ignore[attr-defined]
    second = trainer(folder, TrainingMonitor(every=2), 8, **saving)
    second.train(resume_from_checkpoint=str(folder / "checkpoint-4"))  # type: ignore[attr-defined]
    tables = [read_table(path / "joma-monitor") for path in (tmp_path / "whole", folder)]
    keys = ["step", "layer", "module", "call", "head", "metric"]
    both = tables[0].merge(tables[1], on=keys, how="outer", indicator=True)
    assert set(both["_merge"]) == {"both"}
    assert not tables[1].duplicated(keys).any()
    assert np.allclose(both["value_x"], both["value_y"], rtol=1e-5, equal_nan=True)


def test_stop(tmp_path: Path) -> None:
    callback = TrainingMonitor(every=1, on_alarm="stop")
    run = trainer(tmp_path, callback, 50)
    with torch.no_grad():
        run.model.lm_head.weight.fill_(torch.nan)  # type: ignore[attr-defined]
    run.args.logging_nan_inf_filter = False  # type: ignore[attr-defined]
    run.train()  # type: ignore[attr-defined]
    assert run.state.global_step < 5  # type: ignore[attr-defined]
    assert callback.messages[0].metric == "loss"
