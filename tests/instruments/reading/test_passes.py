"""Running what is wrapped, offloaded or reads no text."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from joma.core.errors import InputError
from joma.instruments.reading.passes import device_of, run_batch, unwrap
from joma.instruments.reading.ready import ReadyBatch
from joma.instruments.reading.texts import TokenBatch
from joma.instruments.watch.watch import watch
from probe_models import tiny_batch, tiny_model


def padded() -> TokenBatch:
    batch = tiny_batch("llama", "right")
    return TokenBatch(batch["input_ids"], batch["attention_mask"] > 0)


def adapted(model: Any) -> nn.Module:
    peft = pytest.importorskip("peft")
    found: nn.Module = peft.get_peft_model(model, peft.LoraConfig(target_modules=["q_proj"]))
    return found


def offloaded(model: Any) -> nn.Module:
    accelerate = pytest.importorskip("accelerate")
    found: nn.Module = accelerate.cpu_offload(model, execution_device="cpu")
    return found


class Wrapper(nn.Module):
    """A wrapper of a kind that nobody has heard of."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)


@pytest.mark.parametrize(
    "wrap", [nn.DataParallel, lambda m: torch.compile(m, backend="eager"), adapted, offloaded, Wrapper]
)
def test_wrapped_models_take_padded_batches(wrap: Any) -> None:
    with torch.no_grad(), watch(plain := tiny_model("llama")) as expected:
        run_batch(plain, padded())
    model = wrap(plain).eval()
    with torch.no_grad(), watch(model) as seen:
        run_batch(model, padded())
    assert seen.table()["value"].tolist() == expected.table()["value"].tolist()
    assert set(seen.table()["count"]) == {23}
    assert type(unwrap(model)) is type(plain)
    assert device_of(model).type == "cpu"


def test_models_of_images_say_what_to_give() -> None:
    model = tiny_model("vit")
    with pytest.raises(InputError, match=r"takes images, not the tokens .* batches=\[\{'pixel_values'"):
        run_batch(model, padded())
    with torch.no_grad(), watch(model) as seen:
        run_batch(model, ReadyBatch.of(tiny_batch("vit")))
    assert set(seen.table()["count"]) == {34}
    with pytest.raises(InputError, match="takes no pixels"):
        run_batch(nn.Linear(1, 1), ReadyBatch.of({"pixels": torch.ones(1, 1)}))
    with pytest.raises(InputError, match="holds no tensor"):
        ReadyBatch.of({"size": 3})
