"""A real model measured on a real text, its weights alone, or an adapter (``joma probe``)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from joma.core.errors import InputError
from joma.core.files import is_there, user_path
from joma.instruments.base import Instrument
from joma.instruments.reading.settings import ReadingSettings
from joma.runs.job import setting


@dataclass(frozen=True, kw_only=True)
class ProbeSettings(Instrument):
    """Attention entropy, stable ranks, coherence, salience, joint dynamics of a real model.

    The settings are those of ``joma.probe``; with ``weights``, of ``joma.probe_weights``. The folder of an
    adapter alone, without a text, is measured by ``joma.probe_adapter``.

    Tables: those of ``joma.ProbeResult``; with ``weights``, ``ranks`` and ``layers``; of an adapter,
    ``adapter`` and ``spectrum``.
    """

    title = "a model probed on a text"
    reproduces = "instruments for JoMA Sec. 3.1, 4 and 7"

    weights: bool = setting(False, "measure weights only, shard by shard; no model is built")
    sections: tuple[str, ...] | None = setting(
        None, "of attention,ranks,coherence,joint_dynamics,salience (none: these),received_attention"
    )
    statistics: tuple[str, ...] | None = setting(None, "of the attention: entropy,renyi_2,self_mass, ...")
    layers: tuple[int, ...] | None = setting(None, "numbers of the layers: 0,5,11 (none: all)", at_least=0)
    heads: tuple[int, ...] | None = setting(None, "numbers of the heads (none: all)", at_least=0)
    rows: float | None = setting(
        None, "share of the attention's rows to measure: 0.125 (none: all)", above=0, below=1
    )
    attention_matrices: bool = setting(
        False, "stable ranks of query, key, value, output matrices too", short="--attention"
    )
    null: str = setting(
        "untrained",
        "what the joint dynamics stand beside: a network of the model's shape with weights drawn anew, or "
        "nothing",
        choices=("untrained", "none"),
    )
    certify: bool = setting(False, "with --weights: prove the error bounds")
    adapter: bool = setting(
        False, "what a low-rank adapter did with its rank (assumed of an adapter's folder without a text)"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        asks_nothing = not (self.weights or self.reading.reads or not self.reading.model)
        if asks_nothing and is_there(user_path(self.reading.model) / "adapter_config.json"):
            object.__setattr__(self, "adapter", True)

    def heading(self) -> str:
        """Which model, and which text."""
        name = Path(self.reading.model).name or self.reading.model
        if self.weights or self.adapter:
            return f"the {'weights of' if self.weights else 'adapter'} {name}"
        return f"{name}, probed on {self.reading.source()}" if self.reading.reads else f"{name}, probed"

    def directory(self) -> str:
        """Weights have a place of their own, and so has an adapter."""
        kind = "weights" if self.weights else "adapter" if self.adapter else "probe"
        return super().directory().replace("/probe-", f"/{kind}-", 1)

    def main_table(self) -> str:
        """A row per layer, or of weights alone per matrix and statistic, of an adapter per module and
        metric."""
        return "ranks" if self.weights else "adapter" if self.adapter else "layers"

    def check_complete(self) -> None:
        """A text or the weights alone, and nothing that belongs to the other."""
        if self.adapter:
            self._check_adapter()
        elif not self.weights:
            if self.certify:
                raise InputError("probe: --certify goes with --weights.")
            if not self.reading.reads:
                raise InputError(
                    "probe: --text FILE is required, or --string, or --weights to measure weights only."
                )
            super().check_complete()
        elif (self.null, self.seed) != ("untrained", 0):
            raise InputError(
                f"probe: --{'seed' if self.seed else 'null'} belongs to an untrained network beside a model "
                "that reads a text, and --weights draws none; leave it out."
            )
        elif (self.sections, self.statistics, self.heads, self.rows) != (None,) * 4 or (
            replace(self.reading, model="", device="auto") != ReadingSettings()
        ):
            raise InputError(
                "probe: --weights reads no text; leave --text and what goes with it out: of the settings "
                "only "
                "--layers, --attention, --certify and --device are for weights."
            )
        elif not self.reading.model:
            raise InputError(f"probe: name a model first: {self.fields()['model'].help}.")

    def _check_adapter(self) -> None:
        plain = type(self)(reading=ReadingSettings(model=self.reading.model), adapter=True, seed=self.seed)
        if self != plain:
            raise InputError(
                "probe: an adapter is measured by its weights alone; leave all but --seed out; or give "
                "--text or --weights for the model that it adapts."
            )
        if not self.reading.model:
            raise InputError("probe: --adapter measures the folder of an adapter; name one.")
