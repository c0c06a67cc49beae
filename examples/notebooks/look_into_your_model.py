# %% [markdown]
# # Look into your model
#
# What do its heads attend to, how concentrated are they, which ranks have its matrices? Three calls answer:
# `joma.watch` for one forward pass, `joma.probe` for a text, `joma.received_attention` for one attention.
#
# The model here is a small Llama that learns the characters of Python's language reference for a few
# seconds. Put your own in its place: `model = joma.load_model("HuggingFaceTB/SmolLM2-135M").model`. About
# half a minute on two cores.

# %% tags=["install"]
# %pip install -q 'joma[hf]'

# %%
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import joma
from joma.data.corpora import load_corpus
from joma.data.text import tokenize

torch.manual_seed(0)
text = tokenize(load_corpus("python-reference"), tokenizer="characters", vocabulary_size=96)
model = LlamaForCausalLM(
    LlamaConfig(
        vocab_size=text.vocabulary_size, hidden_size=64, intermediate_size=128, num_hidden_layers=3,
        num_attention_heads=4, max_position_embeddings=64,
    )
)  # fmt: skip
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
for _ in range(200):
    starts = torch.randint(len(text.training) - 48, (8,))
    batch = torch.stack([torch.from_numpy(text.training[start : start + 48]) for start in starts])
    loss = model(input_ids=batch, labels=batch).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
model.eval()
print(f"loss {loss.item():.2f} nats, {sum(weight.numel() for weight in model.parameters()):,} parameters")

# %% [markdown]
# ## One forward pass
#
# Every attention is measured as it runs; the outputs are the same bits as without.

# %%
with torch.no_grad(), joma.watch(model, statistics=("entropy", "first_key_mass"), reduce="mean") as seen:
    model(input_ids=batch)
table = seen.table().pivot_table(index=["layer", "head"], columns="metric", values="value")
table.round(3)

# %% [markdown]
# A head with an entropy near zero looks at one key; one near the logarithm of what it sees looks at all.
# `seen.coverage()` says what was measured, and how.

# %%
seen.coverage()

# %% [markdown]
# ## A text
#
# A probe reads held-out text and measures entropies, stable ranks and how the representations of tokens lie
# to each other. Its first sentences say what was found; `found.table()` has a row per layer.

# %%
found = joma.probe(model, text.validation[:3000], length=48, sections=["attention", "ranks", "coherence"])
print("\n".join(found.answer()))

# %%
found.table().round(3)

# %%
found.plot()

# %% [markdown]
# ## Who is looked at?
#
# Of one attention: the mass that each key receives, and what leaving it out would change in the outputs.

# %%
layer = model.model.layers[0].self_attn
inputs = model.model.embed_tokens(batch[:1])
query, key, value = (
    project(inputs).view(1, 48, 4, 16).transpose(1, 2)
    for project in (layer.q_proj, layer.k_proj, layer.v_proj)
)
received = joma.received_attention(query.detach(), key.detach(), value.detach(), causal=True)
most = received.mass[0].mean(0).topk(3)
print(
    "the three keys that receive most:",
    most.indices.tolist(),
    [round(mass, 2) for mass in most.values.tolist()],
)
