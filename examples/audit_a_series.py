"""Make a small series of checkpoints, damage some members as published series are damaged, and audit it.

python examples/audit_a_series.py [FOLDER]

FOLDER is where the series goes (default: a temporary folder that is removed).
"""

import json
import shutil
import sys
import tempfile
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn import functional

import joma

STEPS = range(0, 100, 10)
FILES = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")


class Block(nn.Module):
    """Queries, keys, values and an MLP, under the names of Llama's."""

    def __init__(self, width: int) -> None:
        super().__init__()
        attention = {name: nn.Linear(width, width, bias=False) for name in ("q_proj", "k_proj", "v_proj")}
        self.self_attn = nn.ModuleDict(attention)
        mlp = {"up_proj": nn.Linear(width, 2 * width), "down_proj": nn.Linear(2 * width, width)}
        self.mlp = nn.ModuleDict(mlp)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Causal attention, then the MLP, each with its residual."""
        q, k, v = (one(functional.layer_norm(x, x.shape[-1:])) for one in self.self_attn.values())
        x = x + functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        hidden = functional.silu(self.mlp["up_proj"](functional.layer_norm(x, x.shape[-1:])))
        return x + self.mlp["down_proj"](hidden)


def make_series(folder: Path, width: int = 32, words: int = 60) -> None:
    """Train a decoder of two blocks for a moment; ten members, each in two files with an index."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(words, width), Block(width), Block(width), nn.Linear(width, words))
    names = {"0.": "model.embed_tokens.", "1.": "model.layers.0.", "2.": "model.layers.1.", "3.": "lm_head."}
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    rows = (3 * torch.randn(words, words)).softmax(-1)
    for step in range(max(STEPS) + 1):
        if step in STEPS:
            state = {names[name[:2]] + name[2:]: one.detach() for name, one in model.state_dict().items()}
            write(folder / f"step{step}", state)
        tokens = [torch.randint(words, (16,))]
        for _ in range(16):
            tokens.append(torch.multinomial(rows[tokens[-1]], 1).squeeze(1))
        text = torch.stack(tokens, 1)
        loss = functional.cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def write(folder: Path, state: dict[str, torch.Tensor]) -> None:
    """One member: the embedding and the first block in the first file, the rest in the second."""
    folder.mkdir(parents=True)
    first = {name for name in state if "embed" in name or "layers.0" in name}
    placed = {name: FILES[name not in first] for name in state}
    for file in FILES:
        save_file({name: state[name].clone() for name in state if placed[name] == file}, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": placed}))
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "num_attention_heads": 1}))


def damage(folder: Path) -> None:
    """What happens to published series: a file left over, two members exchanged, a wrong layout."""
    shutil.copy(folder / "step90" / FILES[0], folder / "step20" / FILES[0])
    (folder / "step40").rename(folder / "away")
    (folder / "step60").rename(folder / "step40")
    (folder / "away").rename(folder / "step60")
    path = folder / "step80" / FILES[1]
    tensors = load_file(path)
    name = "model.layers.1.self_attn.q_proj.weight"
    save_file({**tensors, name: tensors[name].T.contiguous()}, path)


def main(folder: str = "") -> None:
    """Make the series, damage it, and print what the audit names and what a track leaves out."""
    with tempfile.TemporaryDirectory() as temporary:
        series = Path(folder or temporary) / "series"
        make_series(series)
        print(joma.audit(series, quiet=True).as_text())
        damage(series)
        found = joma.audit(series, quiet=True)
        print(found.as_text())
        curves = joma.track(series, quiet=True)
        measured = curves.table().groupby("checkpoint", sort=False)["layer"].unique()
        print("\nlayers that joma.track measures:")
        for member, layers in measured.items():
            print(f"  {member}: {sorted(int(layer) for layer in layers)}")


if __name__ == "__main__":
    main(*sys.argv[1:])
