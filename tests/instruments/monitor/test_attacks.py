"""What goes wrong around one look costs that look; nothing on disk is believed, mixed or lost."""

from __future__ import annotations

import copy
import io
import json
import logging
import os
import pickle
import random
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

import joma
from command_line import called
from joma.core.errors import RunDirectoryError
from joma.instruments.monitor import folder as folders
from joma.instruments.monitor.alarms.messages import Message
from joma.instruments.monitor.alarms.telling import Teller
from joma.instruments.monitor.folder import Folder, read_table
from joma.instruments.monitor.measuring.rows import COLUMNS
from joma.instruments.monitor.monitor import Monitor

WIDTH = 8


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
        self.mlp = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(x, x, x, need_weights=False)[0]
        return x + self.mlp(x).relu()


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Block(), Block()])
        self.breaks = False

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        if self.breaks:
            raise torch.OutOfMemoryError("out of memory")
        return x


def net() -> Net:
    torch.manual_seed(0)
    return Net()


def batch(rows: int = 3) -> Tensor:
    return torch.randn(rows, 5, WIDTH, generator=torch.Generator().manual_seed(1))


def looked(before: Callable[[Net], object]) -> pd.DataFrame:
    """One look, in which something else happened before the step's own pass."""
    model = net()
    with Monitor(model, every=1, ranks_every=None) as monitor:
        before(model)
        monitor.step(0, loss=model(batch()).sum())
    return monitor.table()


def traced(model: Net) -> None:
    torch.jit.trace(model, batch(), check_trace=False)


def exported(model: Net) -> None:
    torch.export.export(model, (batch(),))


def faked(model: Net) -> None:
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        model(mode.from_tensor(batch()))


def out_of_memory(model: Net) -> None:
    model.breaks = True
    with pytest.raises(torch.OutOfMemoryError):
        model(100 * batch(7))
    model.breaks = False


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("before", [traced, exported, faked, out_of_memory])
def test_a_pass_that_computes_nothing_or_raises_does_not_count(before: Callable[[Net], None]) -> None:
    plain, other = looked(lambda model: None), looked(before)
    pd.testing.assert_frame_equal(plain, other)
    assert "attention_entropy" in set(plain["metric"])


def test_a_pass_is_tried_again_within_the_handler() -> None:
    model = net()
    with Monitor(model, every=1, ranks_every=None) as monitor:
        try:
            model.breaks = True
            model(100 * batch(7))
        except torch.OutOfMemoryError:
            model.breaks = False
            loss = model(batch()).sum()
        monitor.step(0, loss=loss)
    pd.testing.assert_frame_equal(monitor.table(), looked(lambda model: None))


def test_a_model_without_values_trains_on_and_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    model = net().to("meta")
    with caplog.at_level(logging.WARNING, "joma"), Monitor(model, every=1, ranks_every=None) as monitor:
        for step in range(3):
            monitor.step(step, loss=1.0)
            model(torch.empty(2, 5, WIDTH, device="meta"))
    assert monitor.table().query("metric == 'loss'")["step"].tolist() == [0, 1, 2]
    assert sum("meta tensors" in record.getMessage() for record in caplog.records) == 1


@pytest.mark.parametrize("watched", [True, False])
def test_copies_and_pickles_of_a_model_have_no_hooks(watched: bool) -> None:
    model = net()
    calls: list[int] = []
    model.layers[0].register_forward_hook(lambda *_: calls.append(1))
    context = joma.watch(model) if watched else Monitor(model, every=1)
    with context:
        copied = copy.deepcopy(model)
        hooks = [len(one._forward_hooks) + len(one._forward_pre_hooks) for one in copied.modules()]
        assert sum(hooks) == 1  # the user's own
        bare = net()
        own = joma.watch(bare) if watched else Monitor(bare, every=1)
        with own:
            torch.save(bare, io.BytesIO())
            assert pickle.loads(pickle.dumps(bare))(batch()).shape == (3, 5, WIDTH)
    assert not any(vars(one._forward_hooks) | vars(one._forward_pre_hooks) for one in model.modules())


def test_a_copy_of_a_monitor_keeps_what_was_measured(tmp_path: Path) -> None:
    model = net()
    with Monitor(model, every=1, folder=tmp_path / "live", log=lambda step, numbers: None) as monitor:
        monitor.step(0, loss=model(batch()).sum())
        copied, loaded = copy.deepcopy(monitor), pickle.loads(pickle.dumps(monitor))
        monitor.step(1, loss=model(batch()).sum())
    for one in (copied, loaded):
        assert one.last == 0
        assert len(one.table()) == len(monitor.table().query("step == 0"))
        assert f"{one!r}".startswith("<Monitor of Net at step 0, every 1 steps")


def test_an_empty_batch_is_no_fault(caplog: pytest.LogCaptureFixture) -> None:
    model = net()
    with caplog.at_level(logging.WARNING, "joma"), Monitor(model, every=1, ranks_every=None) as monitor:
        monitor.step(0, loss=model(batch(0)).sum())
        monitor.step(1, loss=model(batch()).sum())
    assert not monitor.messages
    assert [record.getMessage() for record in caplog.records] == [
        "joma: a look failed: the batch of a step was empty."
    ]
    assert set(monitor.table().query("metric == 'residual_rms'")["step"]) == {1}


def test_a_second_monitor_is_refused_in_a_sentence(tmp_path: Path) -> None:
    first = Monitor(net(), folder=tmp_path / "live")
    with pytest.raises(
        RunDirectoryError, match=rf"in use by the monitor of process {os.getpid()} on .*close"
    ):
        Monitor(net(), folder=tmp_path / "live")
    first.close()
    Monitor(net(), folder=tmp_path / "live").close()


def test_a_relative_folder_is_that_of_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    with Monitor(net(), every=1, folder="live") as monitor:
        monkeypatch.chdir(tmp_path / "elsewhere")
        monitor.step(0, loss=1.0)
    assert read_table(tmp_path / "live").query("metric == 'loss'")["value"].tolist() == [1.0]
    assert not list((tmp_path / "elsewhere").iterdir())


def altered(text: str, rng: random.Random) -> bytes:
    """One of many ways to alter a file of JSON: bytes, values, structure, all of it."""
    kind = rng.randrange(6)
    at = rng.randrange(len(text))
    if kind == 0:
        return text[:at].encode()
    if kind == 1:
        return (text[:at] + rng.choice("0123456789{}[]\\x") + text[at + 1 :]).encode() + b" "
    if kind == 2:
        return rng.randbytes(rng.randrange(1, 200))
    if kind == 3:
        return rng.choice([b"", b"null", b"[]", b"{}", b"[" * 5000, b'{"step": 1e999}', b'{"state": 3}'])
    kept = json.loads(text)
    inner = json.loads(kept["state"])
    place = inner
    while isinstance(place, dict) and place:
        key = rng.choice(list(place))
        if not isinstance(place[key], dict) or rng.random() < 0.4:
            place[key] = rng.choice([None, -1, "x", [], {}, 1e30, [[1]]])
            break
        place = place[key]
    kept["state"] = json.dumps(inner)
    if kind == 5:  # with a sum that is right
        kept["sum"] = folders.digest_of(kept["state"].encode())
    return json.dumps(kept).encode()


def forged(content: bytes) -> bool:
    try:
        kept = json.loads(content)
        return bool(kept["sum"] == folders.digest_of(kept["state"].encode()))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return False


def test_an_altered_state_is_named_and_learnt_anew(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rng = random.Random(44)
    model = net()
    with Monitor(model, every=1, folder=tmp_path, ranks_every=None) as monitor:
        for step in range(25):
            monitor.step(step, loss=model(batch()).sum())
    whole = (tmp_path / "state.json").read_text()
    expected = monitor._judge.as_state()
    table = read_table(tmp_path)
    for _ in range(44):
        content = altered(whole, rng)
        (tmp_path / "state.json").write_bytes(content)
        if content == whole.encode():
            continue
        caplog.clear()
        with caplog.at_level(logging.WARNING, "joma"):
            again = Monitor(model, every=1, folder=tmp_path, ranks_every=None)
        again._record.folder.release()  # type: ignore[union-attr]
        assert again.last == 24
        assert len(read_table(tmp_path)) == len(table)
        if forged(content):  # whoever knows the sum can say what he likes, but not end a training
            again._judge.look(table[table["step"] == 24])
            continue
        assert sum("is unreadable" in record.getMessage() for record in caplog.records) == 1
        assert again._judge.as_state()["loss"] == expected["loss"]
        assert again._judge.change.watched.looks == 25


def rows(steps: np.ndarray, metric: str, values: np.ndarray, head: int | None = None) -> pd.DataFrame:
    count = len(steps)
    nullable = pd.array([head] * count, dtype="Int64")
    place = {"stack": "", "layer": pd.array([0 if head is not None else None] * count, dtype="Int64")}
    own = {
        "module": "",
        "call": 0,
        "head": nullable,
        "metric": metric,
        "value": values,
        "unit": "",
        "count": 1,
    }
    return pd.DataFrame({"step": steps, **place, **own})[list(COLUMNS)]


def test_parts_are_merged_and_a_long_record_opens_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folders, "MERGED", 50)
    folder = Folder.open(tmp_path, {"model": "Net", "statistics": ["entropy"], "every": 50})
    size, rng = 5000, np.random.default_rng(0)
    most = 0
    for part in range(200):  # a million steps, a look each fifty
        steps = np.arange(part * size, (part + 1) * size)
        looks = steps[::50]
        tables = [rows(steps, "loss", rng.random(size)), rows(steps, "gradient_norm", rng.random(size))]
        tables += [rows(looks, "attention_entropy", rng.random(len(looks)), head) for head in range(8)]
        folder.add(pd.concat(tables, ignore_index=True))
        most = max(most, len(list(tmp_path.glob("*.parquet"))))
    assert most <= 50 + 4
    folder.add(rows(np.array([7]), "loss", np.array([2.0])))  # told later, it counts
    folder.release()
    began = time.process_time()
    again = Folder.open(tmp_path, {"model": "Net", "statistics": ["entropy"], "every": 50})
    opened = time.process_time() - began
    table = again.table()
    read = time.process_time() - began - opened
    assert again.last == 999_999
    assert len(table) == 2_000_000 + 8 * 20_000
    assert table.query("metric == 'loss' and step == 7")["value"].tolist() == [2.0]
    assert table["step"].is_monotonic_increasing
    assert opened < 0.5
    assert opened + read < 4  # seconds of all threads


class Breaking(Block):
    """Is out of memory at its end, once."""

    breaks = False

    def forward(self, x: Tensor) -> Tensor:
        x = super().forward(x)
        if self.breaks:
            self.breaks = False
            raise torch.OutOfMemoryError("out of memory")
        return x


class Retrying(Net):
    """Tries a layer again, on less, where it is out of memory."""

    def __init__(self) -> None:
        super().__init__()
        self.layers[0] = Breaking()

    def forward(self, x: Tensor) -> Tensor:
        try:
            x = self.layers[0](100 * x if self.layers[0].breaks else x)
        except torch.OutOfMemoryError:
            x = self.layers[0](x)
        return self.layers[1](x)


def test_a_part_of_a_pass_that_raised_does_not_count() -> None:
    def tables(breaks: bool) -> pd.DataFrame:
        torch.manual_seed(0)
        model = Retrying()
        model.layers[0].breaks = breaks
        with Monitor(model, every=1, ranks_every=None) as monitor:
            monitor.step(0, loss=model(batch()).sum())
        return monitor.table()

    pd.testing.assert_frame_equal(tables(True), tables(False))


def test_a_pass_whose_backward_pass_raised_does_not_count() -> None:
    """One before it does: gradients are accumulated."""

    def tables(breaks: bool) -> pd.DataFrame:
        model = net()
        with Monitor(model, every=1, ranks_every=None) as monitor:
            model(batch(2)).sum().backward()
            if breaks:
                output = model(100 * batch(7))
                output.register_hook(lambda gradient: 1 / 0)
                with pytest.raises(ZeroDivisionError):
                    output.sum().backward()
            loss = model(batch()).sum()
            loss.backward()
            monitor.step(0, loss=loss, grad_norm=1.0)
        return monitor.table()

    pd.testing.assert_frame_equal(tables(True), tables(False))


def test_what_the_log_says_holds_no_control_character(caplog: pytest.LogCaptureFixture) -> None:
    model = nn.Module()
    model.add_module("x\x1b[31m\rE\u202e", nn.ModuleList([Block(), Block()]))
    model.forward = lambda x: next(model.children())[0](x)  # type: ignore[method-assign]
    with caplog.at_level(logging.INFO, "joma"), Monitor(model, every=1, ranks_every=None) as monitor:
        loss = model(torch.full((3, 5, WIDTH), float("inf"))).sum()
        monitor.step(0, loss=loss)
    said = [record.getMessage() for record in caplog.records]
    assert any(r"x\x1b[31m E\u202e" in one for one in said)
    assert not [one for one in said if not one.isprintable()]


@pytest.mark.parametrize("every", [0, -1, "x", None, 1.5])
def test_a_cadence_that_is_none_is_named(every: object, tmp_path: Path) -> None:
    model = net()
    with Monitor(model, every=1, folder=tmp_path, ranks_every=None) as monitor:
        monitor.step(0, loss=model(batch()).sum())
    facts = json.loads((tmp_path / "monitor.json").read_text())
    (tmp_path / "monitor.json").write_text(json.dumps(facts | {"every": every}))
    done = called(["monitor", str(tmp_path)])
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "steps were looked at" in done.stderr


def test_what_is_warned_of_holds_no_control_character() -> None:
    message = Message(0, "alarm", "x\x1b[31m\nE", "loss", "the loss rose", 0, "a test")
    with pytest.warns(UserWarning, match=r"x\\x1b\[31m\\nE: the loss rose"):
        Teller(None, "warn", None).tell([message])
