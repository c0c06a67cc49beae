# %% [markdown]
# # Your training run watched, and its alarm understood
#
# `joma.Monitor` looks at attention while a model trains. Here the learning rate of the attention's input
# weights starts to double every 15 steps at step 300, as a faulty schedule might have it. When is it
# noticed, where, and does the loss show it by then?
#
# Half a minute on two cores.

# %% tags=["install"]
# %pip install -q joma

# %%
import torch

import joma
from joma.data.corpora import load_corpus
from joma.data.text import tokenize
from joma.models.decoder import Decoder

FAULT, STEPS, RATE = 300, 440, 2e-3
torch.set_num_threads(1)  # so small a model gains nothing from a second one
torch.manual_seed(0)
text = tokenize(load_corpus("python-reference"), tokenizer="characters", vocabulary_size=96)
model = Decoder(text.vocabulary_size, layers=2, width=32, hidden=64, heads=2, longest=32)
named = dict(model.named_parameters())
attention = [weight for name, weight in named.items() if "in_projection" in name]
others = [weight for name, weight in named.items() if "in_projection" not in name]
optimizer = torch.optim.AdamW([{"params": attention}, {"params": others}], lr=RATE)

# %% [markdown]
# The loop is a plain one. The monitor adds a `with` and one line: `monitor.step`. It looks at every fourth
# step, and `steps=` says how long the run is to be: the probability of a false alarm is set for that many.

# %%
with joma.Monitor(model, every=4, steps=STEPS, folder="live", on_alarm=lambda message: None) as monitor:
    for step in range(STEPS):
        optimizer.param_groups[0]["lr"] = RATE * 2.0 ** (max(step - FAULT, 0) / 15)
        starts = torch.randint(len(text.training) - 33, (8,))
        batch = torch.stack([torch.from_numpy(text.training[start : start + 33]) for start in starts])
        logits = model(batch[:, :-1])
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        monitor.step(step, loss=loss)

# %% [markdown]
# ## What it said
#
# An *alarm* is a change against the run's own past. A *state* is a level: a head on one key, a logit beyond
# 100. "Not judged" and "not valid" say that a change was seen of which no probability is claimed. Each
# message says where, since when, how sure it is, and what to do.

# %%
messages = sorted(monitor.messages, key=lambda message: message.step)
shown = [next(message for message in messages if message.kind == kind) for kind in
         dict.fromkeys(message.kind for message in messages)]  # fmt: skip
print(f"{len(messages)} messages; the first of each kind:")
for message in shown:
    print(f"\n{message.kind}: {message.sentence()}")

# %% [markdown]
# ## Is it right?
#
# The fault began at the dotted line. Red is the first message about attention, black the first about the
# loss.

# %%
import matplotlib.pyplot as plt

table = monitor.table()
about_loss = [message.step for message in messages if message.metric == "loss"]
about_attention = [message.step for message in messages if message.metric != "loss"]
figure, axes = plt.subplots(3, figsize=(6, 5), sharex=True, layout="constrained")
for axis, metric, unit in zip(
    axes, ("largest_logit", "attention_entropy", "loss"), ("largest logit", "entropy (nats)", "loss (nats)"),
    strict=True,
):  # fmt: skip
    own = table[table["metric"] == metric].fillna({"layer": 0, "head": 0})
    curves = own.pivot_table(index="step", columns=["layer", "head"], values="value")
    curves.plot(ax=axis, legend=False, ylabel=unit, linewidth=1)
    axis.axvline(FAULT, color="grey", linestyle=":")
    for steps, colour in ((about_attention, "crimson"), (about_loss, "black")):
        for step in steps[:1]:
            axis.axvline(step, color=colour, linewidth=1)
axes[0].set_yscale("log")
for what, steps in (("attention", about_attention), ("the loss", about_loss)):
    print(
        f"first message about {what}: " + (f"{steps[0] - FAULT} steps after the fault" if steps else "none")
    )

# %% [markdown]
# With `on_alarm="stop"` the run would have ended at the first alarm; with `on_alarm="lower_qk_rate"` the rate
# of queries and keys would have been lowered and the run gone on.
#
# ## Later, from the folder
#
# `joma monitor live` prints where the run stands, and `joma report live` makes a page of it. From Python:

# %%
print("\n".join(joma.read("live").answer()))
