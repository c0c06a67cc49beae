# %% [markdown]
# # Your training run watched, and its alarm understood
#
# `joma.Monitor` looks at attention while a model trains. Here the learning rate of queries and keys starts
# to double every 15 steps at step 300, as a faulty schedule might have it. When is it noticed, where, and
# does the loss show it by then?
#
# About a minute on two cores.

# %% tags=["install"]
# %pip install -q 'joma[hf]'

# %%
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import joma
from joma.data.corpora import load_corpus
from joma.data.text import tokenize

FAULT, STEPS = 300, 420
torch.manual_seed(0)
text = tokenize(load_corpus("python-reference"), tokenizer="characters", vocabulary_size=96)
model = LlamaForCausalLM(
    LlamaConfig(
        vocab_size=text.vocabulary_size, hidden_size=48, intermediate_size=128, num_hidden_layers=2,
        num_attention_heads=4, max_position_embeddings=48,
    )
)  # fmt: skip
attention = [weight for name, weight in model.named_parameters() if ".q_proj" in name or ".k_proj" in name]
others = [
    weight for name, weight in model.named_parameters() if ".q_proj" not in name and ".k_proj" not in name
]
optimizer = torch.optim.AdamW([{"params": attention}, {"params": others}], lr=3e-3)

# %% [markdown]
# The loop is a plain one; the monitor adds two lines. `steps=` says how long the run is to be, for which
# the probability of a false alarm is set (`alpha`, 0.001 unless you say otherwise).

# %%
with joma.Monitor(model, every=1, steps=STEPS, folder="live", on_alarm=lambda message: None) as monitor:
    for step in range(STEPS):
        optimizer.param_groups[0]["lr"] = 3e-3 * 2.0 ** (max(step - FAULT, 0) / 15)
        starts = torch.randint(len(text.training) - 48, (8,))
        batch = torch.stack([torch.from_numpy(text.training[start : start + 48]) for start in starts])
        loss = model(input_ids=batch, labels=batch).loss
        loss.backward()
        optimizer.step()
        monitor.step(step, loss=loss)
        optimizer.zero_grad()

# %% [markdown]
# ## What it said
#
# An *alarm* is a change against the run's own past, with the probability that a healthy run alarms. A
# *state* is a level (a head on one key, a logit above 100). "Not judged" and "not valid" say that a change
# was seen whose probability cannot be claimed: the run is too young, or its healthy part drifts more than
# the bound allows.

# %%
for message in monitor.messages:
    if message.kind != "state":
        print(f"{message.kind}: {message.sentence()}\n")
states = [message for message in monitor.messages if message.kind == "state"]
print(f"{len(states)} states; the first: {states[0].sentence()}" if states else "no states")

# %% [markdown]
# ## Is it right?
#
# The curves around it: the entropy of each head, and the loss. The fault began at the dotted line.

# %%
import matplotlib.pyplot as plt

table = monitor.table()
heads = table[table["metric"] == "attention_entropy"].pivot_table(
    index="step", columns=["layer", "head"], values="value"
)
losses = table[table["metric"] == "loss"].set_index("step")["value"]
figure, (above, below) = plt.subplots(2, figsize=(6, 4), sharex=True)
heads.rolling(10).mean().plot(ax=above, legend=False, ylabel="entropy (nats)")
losses.rolling(10).mean().plot(ax=below, ylabel="loss (nats)")
told = [message.step for message in monitor.messages if message.kind != "state"]
for axis in (above, below):
    axis.axvline(FAULT, color="grey", linestyle=":")
    for step in told[:1]:
        axis.axvline(step, color="crimson")

# %% [markdown]
# ## Later, from the folder
#
# `joma monitor live` prints where the run stands, `joma report live` makes a page of it. From Python:

# %%
print("\n".join(joma.read("live").answer()))
