from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import joma
from joma.core.errors import InputError
from joma.instruments.reading import loading
from joma.instruments.reading.loading import load_model, resolve
from probe_models import tiny_model

transformers = pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("llama")
    tiny_model("llama").save_pretrained(path)
    return path


def test_a_folder_becomes_the_model_that_it_holds(folder: Path) -> None:
    found = load_model(folder, device="cpu")
    own = tiny_model("llama")
    tokens = torch.arange(6)[None]
    with torch.no_grad():
        assert torch.equal(found.model(tokens).last_hidden_state, own.eval()(tokens).last_hidden_state)
    assert not found.model.training
    assert found.tokenizer is None
    assert (found.dtype, found.device.type, found.folder) == (torch.float32, "cpu", folder)
    assert load_model(folder, device="cpu", dtype="bfloat16").dtype == torch.bfloat16


def test_an_object_is_taken_as_it_is() -> None:
    model = nn.Linear(2, 2).train()
    found = load_model(model)
    assert found.model is model
    assert model.training
    assert found.name == "Linear"


def test_what_a_model_lacks_or_has_too_much_of_is_said(folder: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")

    def damaged(name: str, change: Any) -> Path:
        path = tmp_path / name
        path.mkdir()
        (path / "config.json").write_text((folder / "config.json").read_text())
        changed = dict(weights)
        change(changed)
        save_file(changed, path / "model.safetensors", metadata={"format": "pt"})
        return path

    key = "layers.1.mlp.up_proj.weight"
    with pytest.raises(InputError, match=rf"lacks 1 of the model's weights .{key}"):
        load_model(damaged("missing", lambda w: w.pop(key)))

    def infinite(w: dict[str, torch.Tensor]) -> None:
        w[key] = w[key].clone()
        w[key][2, 3] = float("inf")

    with pytest.raises(InputError, match=rf"the weight {key} holds inf at \(2, 3\)"):
        load_model(damaged("infinite", infinite))
    truncated = damaged("truncated", lambda w: None) / "model.safetensors"
    truncated.write_bytes(truncated.read_bytes()[:-100])
    with pytest.raises(InputError, match=r"model\.safetensors"):
        load_model(truncated.parent)
    with pytest.raises(InputError, match="file of weights without"):
        load_model(folder / "model.safetensors")
    other = damaged("other", lambda w: None)
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps({**config, "intermediate_size": 8}))
    with pytest.raises(InputError, match="transformers cannot build this model"):
        load_model(other)
    (other / "config.json").unlink()
    with pytest.raises(InputError, match=r"no config\.json"):
        load_model(other)


def test_a_pickle_that_would_run_code_is_refused_unread(folder: Path, tmp_path: Path) -> None:
    class Hostile:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.system, (f"touch {tmp_path}/was_here",)

    path = tmp_path / "hostile"
    path.mkdir()
    (path / "config.json").write_text((folder / "config.json").read_text())
    torch.save({"model.embed_tokens.weight": Hostile()}, path / "pytorch_model.bin")
    with pytest.raises(InputError, match=r"pytorch_model\.bin"):
        load_model(path)
    assert not (tmp_path / "was_here").exists()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"model": "no such/ model"}, "does not exist"),
        ({"model": "weights.gguf"}, "does not exist"),
        ({"model": "./nowhere"}, "does not exist"),
        ({"model": 3}, "model is a int"),
        ({"model": nn.Linear(1, 1), "tokenizer": "/nowhere/at all"}, "does not exist|not a path"),
    ],
)
def test_what_is_no_model_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        load_model(given.pop("model"), **given)


def test_unknown_devices_and_types_are_refused(folder: Path) -> None:
    with pytest.raises(InputError, match="dtype 'int8' is none of"):
        load_model(folder, dtype="int8")
    with pytest.raises(InputError, match="device 'gpu' is not here"):
        load_model(folder, device="gpu")
    for device in ("meta", "privateuseone"):
        with pytest.raises(InputError, match=f"device '{device}' is not here"):
            load_model(folder, device=device)
    with pytest.raises(InputError, match="is for models on the hub"):
        resolve(folder, "main")
    with pytest.raises(InputError, match="names the revision 'a'"):
        resolve("org/model@a", "b")


def test_a_hub_that_cannot_be_reached_says_what_to_download(tmp_path: Path) -> None:
    code = (
        "from joma.instruments.reading.loading import load_model\n"
        "try:\n    load_model('some-org/some-model@step1000')\n"
        "except Exception as error:\n    print(type(error).__name__, error)"
    )
    environment = {**os.environ, "HF_HOME": str(tmp_path), "HF_ENDPOINT": "http://127.0.0.1:9"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert done.stdout.startswith("InputError 'some-org/some-model' is not a path here")
    assert "hf download some-org/some-model --revision step1000 --local-dir FOLDER" in done.stdout


def test_messages_and_bars_of_transformers_are_as_before(folder: Path) -> None:
    from transformers.utils import logging as messages

    before = messages.get_verbosity(), messages.is_progress_bar_enabled()
    load_model(folder)
    assert (messages.get_verbosity(), messages.is_progress_bar_enabled()) == before
    assert loading.DTYPES["float32"] == torch.float32


@pytest.mark.parametrize("settings", [{}, {"num_hidden_layers": 10**9}, {"vocab_size": 10**12}])
def test_settings_of_more_weights_than_the_files_hold_are_refused_before_any_is_drawn(
    settings: dict[str, int], folder: Path, tmp_path: Path
) -> None:
    """By its defaults a Llama has 27 GB, which a folder of a kilobyte would ask for."""
    save_file({"model.layers.0.mlp.up_proj.weight": torch.randn(24, 8)}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"} | settings))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(InputError, match=r"describes a model of [\d,]+ (weights|layers), and the files hold"):
        load_model(tmp_path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500_000  # kB


def test_a_text_that_is_missing_is_told_before_a_model_is_loaded(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no text\.txt cannot be read"):
        joma.probe(tmp_path / "no model", tmp_path / "no text.txt")
