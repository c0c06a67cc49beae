from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from joma.instruments.monitor.folder import read_table

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
    assert sorted(table[table["metric"] == "attention_entropy"]["step"].unique()) == [2, 4, 6]
    assert table[table["metric"] == "gradient_norm"]["step"].tolist() == list(range(1, 7))
    told = table[table["metric"] == "loss"]
    assert told["step"].tolist() == list(range(1, 7))
    assert np.allclose(told["value"], losses[0], atol=1e-4)
    counts = table[(table["metric"] == "attention_entropy") & (table["step"] == 2)]["count"]
    assert set(counts) == {2 * 12 * accumulated}


def test_the_loss_is_read_at_every_step_and_raw(tmp_path: Path) -> None:
    """The Trainer logs every third step, and hides what is not finite."""
    callback = TrainingMonitor(every=4)
    run = trainer(tmp_path, callback, 6, logging_steps=3)
    calls: list[int] = []

    def fourth(module: object, inputs: object, output: object) -> object:
        calls.append(1)
        if len(calls) == 4:
            output.loss = output.loss * torch.nan  # type: ignore[attr-defined]
        return output

    handle = run.model.register_forward_hook(fourth)  # type: ignore[attr-defined]
    run.train()  # type: ignore[attr-defined]
    table = read_table(tmp_path / "joma-monitor")
    losses = table[table["metric"] == "loss"].set_index("step")["value"]
    assert list(losses.index) == list(range(1, 7))
    assert losses.loc[:3].notna().all()
    assert np.isnan(losses[4])
    (message,) = [message for message in callback.messages if message.metric == "loss"]
    assert message.step == 4
    handle.remove()
    assert not run.model._forward_hooks  # type: ignore[attr-defined]


def test_a_loss_that_the_model_does_not_tell_is_the_logs(tmp_path: Path) -> None:
    run = trainer(tmp_path, TrainingMonitor(every=4), 6, logging_steps=3, label_smoothing_factor=0.1)
    run.train()  # type: ignore[attr-defined]
    table = read_table(tmp_path / "joma-monitor")
    assert table[table["metric"] == "loss"]["step"].tolist() == [3, 6]


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


def test_a_training_that_was_broken_off_leaves_nothing_behind(tmp_path: Path) -> None:
    callback = TrainingMonitor(every=2)
    run = trainer(tmp_path, callback, 4)
    args, state, net = run.args, run.state, run.model  # type: ignore[attr-defined]
    for _ in range(3):  # interrupted in a notebook, or begun anew with smaller batches
        callback.on_train_begin(args, state, transformers.TrainerControl(), model=net)
    callback.on_train_end(args, state, transformers.TrainerControl())
    assert not any(module._forward_pre_hooks or module._forward_hooks for module in net.modules())


@pytest.mark.slow
def test_the_loss_of_two_processes_is_that_which_the_trainer_logs(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2"}
    running = [
        subprocess.Popen(
            [sys.executable, __file__, str(tmp_path)],
            env={**os.environ, **place, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in (0, 1)
    ]
    for one in running:
        with contextlib.suppress(subprocess.TimeoutExpired):
            one.wait(timeout=240)
    for one in running:
        one.kill()
    said = [one.communicate()[1] for one in running]
    assert [one.returncode for one in running] == [0, 0], said
    table = read_table(tmp_path / "joma-monitor")
    logged = json.loads((tmp_path / "losses.json").read_text())
    told = table[(table["metric"] == "loss") & (table["step"] <= 4)]["value"]
    assert np.allclose(told, logged[:4], atol=1e-4)


def process(folder: Path) -> None:
    run = trainer(folder, TrainingMonitor(every=2), 4, ddp_backend="gloo")
    run.train()  # type: ignore[attr-defined]
    if run.args.process_index == 0:  # type: ignore[attr-defined]
        losses = [entry["loss"] for entry in run.state.log_history if "loss" in entry]  # type: ignore[attr-defined]
        (folder / "losses.json").write_text(json.dumps(losses))
    torch.distributed.barrier()
    sys.stderr.flush()
    os._exit(0)  # gloo, taken down with what is sharded over it, waits for ever now and then


if __name__ == "__main__":
    faulthandler.dump_traceback_later(200, exit=True)  # a process that waits for the other says where
    process(Path(sys.argv[1]))
