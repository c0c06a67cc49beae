# %% [markdown]
# # Your checkpoints, audited and tracked
#
# Is each checkpoint what its name says? When did attention and ranks change? Here a small decoder leaves
# twelve checkpoints, one of which is then overwritten with another one's bytes, as happens when files are
# copied.
#
# About a minute on two cores.

# %% tags=["install"]
# %pip install -q joma

# %%
from pathlib import Path
from shutil import copy

import torch
from safetensors.torch import save_file

import joma
from joma.data.corpora import load_corpus
from joma.data.text import tokenize
from joma.models.decoder import Decoder

torch.manual_seed(0)
text = tokenize(load_corpus("python-reference"), tokenizer="characters", vocabulary_size=96)
model = Decoder(text.vocabulary_size, layers=2, width=64, hidden=128, heads=2, longest=48)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
for step in range(361):
    if step % 30 == 0:
        folder = Path("run", f"checkpoint-{step}")
        folder.mkdir(parents=True, exist_ok=True)
        save_file(model.state_dict(), folder / "model.safetensors")
    starts = torch.randint(len(text.training) - 49, (16,))
    windows = torch.stack([torch.from_numpy(text.training[start : start + 49]) for start in starts])
    loss = torch.nn.functional.cross_entropy(model(windows[:, :-1]).flatten(0, 1), windows[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

# %% [markdown]
# The accident: step 180 gets the bytes of step 300.

# %%
copy("run/checkpoint-300/model.safetensors", "run/checkpoint-180/model.safetensors")

# %% [markdown]
# ## Is each one what its name says?
#
# `joma.audit` reads each member once. It compares bytes, and each tensor with the line between its
# neighbours.

# %%
audited = joma.audit("run", quiet=True)
print("\n".join(audited.answer()))
audited.table()

# %% [markdown]
# ## When did it change?
#
# Without the wrong member: stable ranks, changes and speeds of every layer, along training.

# %%
import shutil

shutil.rmtree("run/checkpoint-180")
tracked = joma.track("run", quiet=True, out="track")
print("\n".join(tracked.answer()))

# %%
tracked.plot()

# %% [markdown]
# Every fall and rise stands beside its null, judged together with all other curves of the table.

# %%
bounces = tracked.bounces()
bounces[["layer", "metric", "dip_step", "dip_discovery", "rebound_discovery"]].head(8).round(3)
