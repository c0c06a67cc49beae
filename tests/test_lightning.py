from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from joma.instruments.monitor.folder import read_table

lightning = pytest.importorskip(
    "lightning", reason="lightning is not installed: pip install 'joma[lightning]'"
)

from joma.lightning import TrainingMonitor  # noqa: E402

WIDTH, LENGTH = 8, 5


class Net(lightning.LightningModule):  # type: ignore[misc, name-defined]
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.TransformerEncoderLayer(WIDTH, 2, 8, 0.0, batch_first=True)])
        self.losses: list[float] = []
        self.breaks_at = -1

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layers[0](x)
        return y

    def training_step(self, batch: list[Tensor], number: int) -> Tensor:
        (x,) = batch
        if number == self.breaks_at:
            raise ValueError("broken off")
        loss = (self(x) - x).square().mean()
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def fit(folder: Path, net: Net, callback: TrainingMonitor, steps: int, accumulated: int = 1) -> None:
    torch.manual_seed(0)
    data = torch.utils.data.TensorDataset(torch.randn(24, LENGTH, WIDTH))
    run = lightning.Trainer(
        default_root_dir=folder,
        max_steps=steps,
        accumulate_grad_batches=accumulated,
        callbacks=[callback],
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    run.fit(net, torch.utils.data.DataLoader(data, batch_size=2))


@pytest.mark.parametrize("accumulated", [1, 2])
def test_steps_are_optimizer_steps(tmp_path: Path, accumulated: int) -> None:
    net = Net()
    fit(tmp_path, net, TrainingMonitor(every=2), 5, accumulated)
    table = read_table(tmp_path / "joma-monitor")
    own = net.losses[accumulated - 1 :: accumulated]  # as they were, not divided by Lightning
    assert table[table["metric"] == "loss"]["value"].tolist() == pytest.approx(own[:5], rel=1e-6)
    assert sorted(table[table["metric"] == "attention_entropy"]["step"].unique()) == [2, 4]
    assert table[table["metric"] == "loss"]["step"].tolist() == [1, 2, 3, 4, 5]
    assert table[table["metric"] == "gradient_norm"]["step"].tolist() == [1, 2, 3, 4, 5]
    counts = table[(table["metric"] == "attention_entropy") & (table["step"] == 4)]["count"]
    assert set(counts) == {2 * LENGTH * accumulated}


def test_a_training_that_breaks_off_leaves_nothing_on_the_model(tmp_path: Path) -> None:
    net = Net()
    net.breaks_at = 3
    with pytest.raises(ValueError, match="broken off"):
        fit(tmp_path, net, TrainingMonitor(every=1), 9)
    assert not any(module._forward_pre_hooks or module._forward_hooks for module in net.modules())
    assert read_table(tmp_path / "joma-monitor")["step"].max() == 3
