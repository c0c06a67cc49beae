"""The sizes that a model's configuration states, whatever a family calls them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from joma.checkpoints.families.records import Family, family_of
from joma.core.files import Json

Config = Mapping[str, Json]

_HIDDEN = ("hidden_size", "d_model", "n_embd", "dim", "embed_dim", "model_dim", "hidden_dim", "width")
_HEADS = (
    *("num_attention_heads", "n_head", "n_heads", "num_heads", "attention_heads", "encoder_attention_heads"),
    *("heads",),
)
_PAIRS = ("num_key_value_heads", "num_kv_heads", "multi_query_group_num", "kv_n_heads", "n_kv_heads")
_HEAD_WIDTH = ("head_dim", "d_kv", "attention_head_dim", "head_size")
_EXPERTS = (
    *(
        "num_experts",
        "num_local_experts",
        "n_routed_experts",
        "moe_num_experts",
        "num_routed_experts",
        "n_experts",
    ),
    *("num_moe_experts",),
)
_LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
# A tower's settings lie under a name that occurs in its weights' names; these occur under another.
_OTHER_WORDS = {"vision": ("visual", "image", "vit", "img"), "audio": ("speech", "sound")}
_LANGUAGE = ("text_config", "llm_config", "language_config", "language_model_config", "thinker_config")


def whole(config: Config, *keys: str) -> int | None:
    """The first of these settings that is a positive whole number."""
    for key in keys:
        value = config.get(key)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return None


def states_heads(config: Mapping[Any, Any]) -> bool:
    """Whether a mapping tells a number of heads, as the settings of a model do."""
    return whole(config, *_HEADS) is not None


@dataclass(frozen=True)
class Sizes:
    """What one tower of a model says of itself."""

    config: Config
    family: Family

    @property
    def hidden(self) -> int | None:
        """Width of the residual stream."""
        return whole(self.config, *_HIDDEN)

    @property
    def heads(self) -> int | None:
        """Query heads."""
        return whole(self.config, *_HEADS)

    @property
    def pairs(self) -> int | None:
        """Heads of keys and values: as many as of queries where nothing else is said."""
        return whole(self.config, *_PAIRS) or whole(self._inner("attn_config"), *_PAIRS) or self.heads

    @property
    def head_width(self) -> int | None:
        """Rows of one head, where the configuration states them."""
        return whole(self.config, *_HEAD_WIDTH)

    @property
    def query_width(self) -> int | None:
        """Rows of one head of queries: latent attention's have a part with positions and one without."""
        parts = self.number("qk_nope_head_dim"), self.number("qk_rope_head_dim")
        return sum(part or 0 for part in parts) or self.head_width

    @property
    def experts(self) -> int | None:
        """Routed experts of a layer."""
        return whole(self.config, *_EXPERTS) or whole(self._inner("ffn_config"), *_EXPERTS)

    @property
    def unused_from(self) -> int | None:
        """The first layer that reads the keys and values of an earlier one (Gemma 3n, Gemma 4)."""
        layers, shared = whole(self.config, *_LAYERS), whole(self.config, "num_kv_shared_layers")
        return None if layers is None or shared is None else max(layers - shared, 0)

    def uses_own_keys(self, layer: int) -> bool:
        """Whether a layer's attention reads the keys and values that its own matrices make."""
        sources = self.config.get("kv_source_layers")
        if isinstance(sources, list) and layer < len(sources):
            return bool(sources[layer] == layer)
        return self.unused_from is None or layer < self.unused_from

    def number(self, *keys: str) -> int | None:
        """Another setting."""
        return whole(self.config, *keys)

    def flag(self, key: str, default: bool = False) -> bool:
        """A setting that is yes or no."""
        value = self.config.get(key, default)
        return bool(default if value is None else value)

    def _inner(self, key: str) -> Config:
        inner = self.config.get(key)
        return inner if isinstance(inner, Mapping) else {}


def sizes_for(config: Config, name: str) -> Sizes:
    """The settings of the tower in which a weight of this name stands: of language where nothing else is
    said."""
    found: Config = config
    while (inner := _inner_for(found, name)) is not None:
        found = inner
    model_type = found.get("model_type", config.get("model_type", ""))
    return Sizes(found, family_of(str(model_type)))


def _inner_for(config: Config, name: str) -> Config | None:
    towers = {
        key.removesuffix("_config"): value
        for key, value in config.items()
        if key.endswith("_config") and isinstance(value, Mapping) and whole(value, *_HEADS, *_HIDDEN)
    }
    path = name.lower()
    for tower, inner in towers.items():
        if f"{tower}_config" not in _LANGUAGE and any(
            word in path for word in (tower, *_OTHER_WORDS.get(tower, ()))
        ):
            return inner
    return next((towers[key[:-7]] for key in _LANGUAGE if key[:-7] in towers), None)


def config_of(model: nn.Module) -> Config:
    """A living model's settings as a mapping, those of the model that a wrapper holds; empty where there are
    none."""
    config = next((c for m in model.modules() if (c := getattr(m, "config", None)) is not None), None)
    if isinstance(config, Mapping):
        return config
    as_dict = getattr(config, "to_dict", None)
    if not callable(as_dict):
        return {}
    settings: dict[str, Json] = dict(as_dict())
    # Attribute names that stand for others (GPT-2's n_head) are not in the dictionary.
    for name in ("num_attention_heads", "num_key_value_heads", "hidden_size"):
        if name not in settings and isinstance(getattr(config, name, None), int):
            settings[name] = getattr(config, name)
    return settings
