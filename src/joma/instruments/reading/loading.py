"""Real models by hub name, folder, GGUF file or as an object, with their tokenizer."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from joma.checkpoints.adapters import is_adapter
from joma.checkpoints.checkpoint import Checkpoint, open_checkpoint
from joma.checkpoints.in_memory import weights_of
from joma.core.errors import InputError, abbreviate, first_line, foreign
from joma.core.files import LONGEST_CONFIG, LONGEST_INDEX, is_there, parse_json, read_bytes, user_path
from joma.instruments.reading.amount import check_amount
from joma.instruments.reading.passes import device_of
from joma.instruments.reading.remarks import without_remarks_on_import

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase as Tokenizer

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

_HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?(@[\w./-]+)?")
_PLAIN_FILES = ["*.json", "*.txt", "*.model", "*.jinja"]
_SHOWN_KEYS = 3


@dataclass(frozen=True)
class LoadedModel:
    """A model that is ready to run, and what turns text into its tokens."""

    model: nn.Module
    """In evaluation mode if it was loaded here; an object that was given is left as it is."""
    tokenizer: Tokenizer | None
    """transformers' tokenizer, or None where there is none."""
    name: str
    """What the user called it; of an object, its class's name."""
    device: torch.device
    dtype: torch.dtype
    folder: Path | None = None
    """Where its weights lie on disk (a folder or a GGUF file); None of an object."""


def load_model(
    model: str | Path | nn.Module,
    *,
    tokenizer: Tokenizer | str | Path | None = None,
    revision: str | None = None,
    device: str | torch.device = "auto",
    dtype: str | torch.dtype | None = None,
    trust_remote_code: bool = False,
) -> LoadedModel:
    """Load a model, or take one that is there.

    Args:
        model: a folder that transformers can read, a ``.gguf`` file, the name of a model on the Hugging
            Face hub (``id`` or ``id@revision``), or a module. A module is used as it is, where it is.
        tokenizer: its tokenizer, or the name or folder of one; by default the model's own.
        revision: of a model on the hub, in place of ``@revision``.
        device: ``auto`` (CUDA if there is one), ``cpu``, ``cuda``, ``cuda:1``.
        dtype: of the weights: float32, bfloat16 or float16. By default float32 on a CPU, where shorter types
            are slow, and what the checkpoint holds elsewhere.
        trust_remote_code: run the Python code that lies with a model that transformers does not know. It can
            do whatever you can.

    Raises:
        InputError: no such model, a hub that cannot be reached, a checkpoint that is damaged, incomplete or
            would run code, weights that are NaN or infinite, an unknown device or dtype.

    Examples:
        >>> loaded = joma.load_model(torch.nn.Linear(4, 3))
        >>> loaded.name, str(loaded.device)
        ('Linear', 'cpu')
    """
    if isinstance(model, nn.Module):
        _check_finite(model, type(model).__name__)
        first = next(model.parameters(), torch.empty(0))
        return LoadedModel(
            model,
            _tokenizer(tokenizer, None, trust_remote_code),
            type(model).__name__,
            device_of(model),
            first.dtype,
        )
    if not isinstance(model, str | Path):
        raise InputError(
            f"model is a {type(model).__name__}; give a torch.nn.Module, a folder, a .gguf file or a name."
        )
    place = checked_device(device)
    precision = _dtype(dtype, place)
    _need_transformers()
    folder = resolve(model, revision)
    with _quiet_transformers():
        module = _from_disk(folder, precision, trust_remote_code)
    _check_finite(module, str(model))
    module = module.to(place).eval()
    first = next(module.parameters())
    found = _tokenizer(tokenizer, folder, trust_remote_code)
    return LoadedModel(module, found, str(model), place, first.dtype, folder)


def resolve(model: str | Path, revision: str | None = None) -> Path:
    """The folder or file that holds a model's weights; one on the hub is downloaded into its cache.

    Raises:
        InputError: neither a path nor the name of a model that is cached or can be reached.
    """
    path = user_path(model)
    if is_there(path):
        if revision is not None:
            raise InputError(f"revision = {revision!r} is for models on the hub; {path} is a local path.")
        return path
    name = str(model)
    if (
        not _HUB_NAME.fullmatch(name)
        or name.startswith((".", "~"))
        or path.suffix in (".gguf", ".safetensors", ".bin", ".pt")
    ):
        raise InputError(f"{name} does not exist; give a folder, a .gguf file or a model's name on the hub.")
    name, _, named = name.partition("@")
    if named and revision is not None and named != revision:
        raise InputError(f"{model} names the revision {named!r} and revision = {revision!r}; give one.")
    return _from_hub(name, named or revision)


def _from_hub(name: str, revision: str | None) -> Path:
    if importlib.util.find_spec("huggingface_hub") is None:
        raise InputError(
            f"there is no folder {name!r} here, and a model of the hub needs: pip install 'joma[hf]'."
        )
    from huggingface_hub import HfApi, snapshot_download

    from joma.checkpoints.hub_words import BrokenOffError, in_words

    with contextlib.suppress(Exception):  # not in the cache, or not whole
        cached = Path(snapshot_download(name, revision=revision, local_files_only=True))
        if open_checkpoint(cached).entries:
            return cached
    try:
        with in_words(name, revision):
            info = HfApi().model_info(name, revision=revision, timeout=10)
            files = [sibling.rfilename for sibling in info.siblings or []]
            weights = "*.safetensors" if any(f.endswith(".safetensors") for f in files) else "*.bin"
            return Path(
                snapshot_download(
                    name, revision=revision, allow_patterns=[*_PLAIN_FILES, weights], ignore_patterns=["*/*"]
                )
            )
    except BrokenOffError as error:  # nothing was begun that could be continued
        raise InputError(str(error)) from error


def _from_disk(path: Path, dtype: torch.dtype | None, trust: bool) -> nn.Module:
    import transformers

    held = open_checkpoint(path)  # refuses what is damaged or would run code, unread
    gguf_file: dict[str, str] = {}
    folder = path
    if path.is_file():
        if path.suffix != ".gguf":
            raise InputError(f"{path} is a file of weights without a model's settings; give its folder.")
        for package in ("gguf", "accelerate"):
            if importlib.util.find_spec(package) is None:
                raise InputError(f"a GGUF file needs the package {package}: pip install 'joma[gguf]'.")
        folder, gguf_file = path.parent, {"gguf_file": path.name}
    elif not (path / "config.json").is_file():
        gguf = sorted(path.glob("*.gguf"))
        if gguf:
            return _from_disk(gguf[0], dtype, trust)
        if is_adapter(path):
            raise InputError(
                f"{path} holds an adapter and no model that could read a text: merge it into its base "
                "(merge_and_unload of PEFT) and give that folder, or measure weights only (--weights)."
            )
        raise InputError(f"{path} has no config.json, so its model cannot be built; give the whole folder.")
    code = _own_code(folder / "config.json")
    _refuse_own_code(folder, code, trust)
    try:
        config = transformers.AutoConfig.from_pretrained(folder, trust_remote_code=trust, **gguf_file)
        names = [name for name in config.architectures or [] if hasattr(transformers, name)]
        kind = getattr(transformers, names[0]) if names else transformers.AutoModelForCausalLM
        if gguf_file:  # its classes know the file's format, not the model's own
            kind = transformers.AutoModelForCausalLM
        elif trust and "AutoModel" in code and "AutoModelForCausalLM" not in code:
            kind = transformers.AutoModel
        if not gguf_file and not code:
            check_amount(held, config, kind, folder)
        loaded: Any = kind.from_pretrained(
            folder, dtype=dtype or "auto", output_loading_info=True, trust_remote_code=trust, **gguf_file
        )
        model, found = loaded
    except (MemoryError, torch.OutOfMemoryError) as error:
        raise InputError(
            f"{path} does not fit into memory; choose dtype bfloat16, or another device."
        ) from error
    except InputError:
        raise
    except Exception as error:  # of many libraries, all of one meaning here
        raise InputError(
            f"{path}: transformers cannot build this model ({type(error).__name__}: {first_line(error)}); "
            "download it again, or give a model of a family that transformers knows."
        ) from error
    missing = sorted(found["missing_keys"])
    if missing:
        some = ", ".join(missing[:_SHOWN_KEYS])
        raise InputError(
            f"{path} lacks {len(missing)} of the model's weights ({some}), which would be random numbers; "
            "download it again."
        )
    assert isinstance(model, nn.Module)
    return model


def _own_code(settings: Path) -> dict[str, str]:
    """What code a model's or tokenizer's settings ask for: class of transformers -> file and class."""
    if not is_there(settings):
        return {}
    text = read_bytes(settings, LONGEST_INDEX)  # a tokenizer's may hold its words
    try:
        content = parse_json(text)
    except ValueError:
        return {}  # damaged: told by whoever reads it
    asked = content.get("auto_map") if isinstance(content, dict) else None
    if isinstance(asked, list):  # as old tokenizers wrote it
        asked = {"AutoTokenizer": asked}
    return {str(name): str(code) for name, code in asked.items()} if isinstance(asked, dict) else {}


def _refuse_own_code(source: Path, code: dict[str, str], trust: bool) -> None:
    if code and not trust and not _is_known(source):
        files = ", ".join(sorted(set(code.values())))
        raise InputError(
            f"{source} brings its own Python code ({abbreviate(files)}), which joma does not run; if you "
            "trust it, say --trust-remote-code (in Python: trust_remote_code=True)."
        )


def _is_known(source: Path) -> bool:
    """Does transformers know this kind of model, so that its own classes serve?"""
    import transformers

    try:
        content = parse_json(read_bytes(source / "config.json", LONGEST_CONFIG))
    except (InputError, ValueError):
        return False
    kind = content.get("model_type") if isinstance(content, dict) else None
    return isinstance(kind, str) and kind in transformers.CONFIG_MAPPING


def _tokenizer(
    tokenizer: Tokenizer | str | Path | None, folder: Path | None, trust: bool
) -> Tokenizer | None:
    if tokenizer is not None and not isinstance(tokenizer, str | Path):
        return tokenizer
    source = tokenizer if tokenizer is not None else folder
    if source is None:
        return None
    _need_transformers()
    from transformers import AutoTokenizer

    source = Path(source)
    kwargs: dict[str, str] = {}
    if source.suffix == ".gguf" and source.is_file():
        source, kwargs = source.parent, {"gguf_file": source.name}
    if tokenizer is None and not kwargs and not any(source.glob("*token*")):
        gguf = sorted(source.glob("*.gguf"))
        if not gguf:
            return None
        kwargs = {"gguf_file": gguf[0].name}
    if not source.exists():
        source = _from_hub(*_name_and_revision(str(tokenizer)))
    _refuse_own_code(source, _own_code(source / "tokenizer_config.json"), trust)
    # Errors of many libraries, all of one meaning here.
    advice = "download it again, or give another one as tokenizer"
    with foreign(f"the tokenizer in {source} cannot be read; {advice}"), _quiet_transformers():
        return AutoTokenizer.from_pretrained(source, trust_remote_code=trust, **kwargs)


def _name_and_revision(name: str) -> tuple[str, str | None]:
    name, _, revision = name.partition("@")
    return name, revision or None


def _need_transformers() -> None:
    if importlib.util.find_spec("transformers") is None:
        raise InputError("loading a model needs the package transformers: pip install 'joma[hf]'.")


def checked_device(device: str | torch.device) -> torch.device:
    """A device that is here; ``auto`` is CUDA if there is one.

    Raises:
        InputError: one that is not.
    """
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        found = torch.device(device)
        torch.zeros(1, device=found).item()  # what has no values (meta) is no place to measure
    except (RuntimeError, AssertionError, NotImplementedError, ImportError) as error:
        raise InputError(
            f"device {str(device)!r} is not here ({first_line(error)}); give auto, cpu or cuda[:i]."
        ) from error
    return found


def _dtype(dtype: str | torch.dtype | None, device: torch.device) -> torch.dtype | None:
    if isinstance(dtype, torch.dtype):
        dtype = str(dtype).removeprefix("torch.")
    if dtype is None or dtype == "auto":
        return torch.float32 if device.type == "cpu" else None
    if dtype not in DTYPES:
        raise InputError(f"dtype {dtype!r} is none of {', '.join(DTYPES)}.")
    return DTYPES[dtype]


def _check_finite(model: nn.Module, name: str) -> None:
    """Refuse weights that are NaN or infinite, quantised and offloaded ones too; those kept elsewhere are not
    seen."""
    held = weights_of(model)
    for weight in held.entries:
        tensor = _numbers(held, weight)
        # The sum is not finite if an entry is not; only then is it worth looking where.
        if tensor is not None and not bool(tensor.sum().isfinite()):
            bad = ~tensor.isfinite()
            if bool(bad.any()):
                where = tuple(bad.nonzero()[0].tolist())
                raise InputError(
                    f"{name}: the weight {weight} holds {float(tensor[where])} at {where} ({int(bad.sum())} "
                    "of "
                    f"{tensor.numel()} entries are not finite); the file is damaged or the run diverged."
                )


def _numbers(held: Checkpoint, weight: str) -> Tensor | None:
    """A stored tensor's values; None where they are no floating point numbers, or kept on another machine."""
    entry = held.entries[weight]
    if entry.problem or 0 in entry.shape:
        return None
    try:
        tensor = held.read(weight)
    except InputError:
        return None
    return tensor if tensor.is_floating_point() else None


@contextlib.contextmanager
def _quiet_transformers() -> Iterator[None]:
    """No bars and no remarks: what matters is raised."""
    from transformers import utils

    messages: Any = utils.logging
    level, bars = messages.get_verbosity(), messages.is_progress_bar_enabled()
    hub = logging.getLogger("huggingface_hub")
    hub_level = hub.level
    messages.set_verbosity_error()
    messages.disable_progress_bar()
    hub.setLevel(logging.ERROR)
    try:
        with without_remarks_on_import(), _without_gguf_bar():
            yield
    finally:
        messages.set_verbosity(level)
        hub.setLevel(hub_level)
        if bars:
            messages.enable_progress_bar()


@contextlib.contextmanager
def _without_gguf_bar() -> Iterator[None]:
    """The bar of the conversion of GGUF files heeds no setting of transformers."""
    import transformers.modeling_gguf_pytorch_utils as gguf

    shown = getattr(gguf, "tqdm", None)
    if shown is None:
        yield
        return
    vars(gguf)["tqdm"] = lambda items, **_: items
    try:
        yield
    finally:
        vars(gguf)["tqdm"] = shown
