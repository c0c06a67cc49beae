# %% [markdown]
# # The dip and the bounce, in twenty lines
#
# The JoMA paper predicts that attention first becomes sparse, then dense again: its entropy dips and bounces.
# Here its Eq. 6 is solved exactly, and `joma.bounce` says of noisy curves whether they rise again, or whether
# the rise is noise. Then it is asked of a curve that only falls.
#
# A few seconds. `joma run fig6` asks the same of decoders that learn a real text, in some minutes.

# %% tags=["install"]
# %pip install -q joma

# %%
import matplotlib.pyplot as plt
import numpy as np

import joma
from joma.dynamics.salience_flow import attention_entropy
from joma.theory import salience

# %% [markdown]
# Components with a larger `mu` are learned first, so that few tokens get all the attention; the others
# follow.

# %%
mu = np.array([1.5, 2.0, 2.5, 3.0, 3.5])
steps = np.arange(1, 81)
entropy = attention_entropy(salience.solve(mu, np.geomspace(1e-3, 50, 80)).v, temperature=2.0)
lowest = int(entropy.argmin())
print(f"falls from {entropy[0]:.2f} to {entropy[lowest]:.2f} nats and rises to {entropy[-1]:.2f}")

# %% [markdown]
# Five runs are measured with noise, and five of a curve that stays at its lowest point. Several runs are
# judged together: their spread shows the noise. One row a run, measured at even steps.

# %%
noise = np.random.default_rng(0).normal(0, 0.05, (5, 80))
only_falls = np.minimum.accumulate(entropy)
for name, curve in (("bounces", entropy), ("only falls", only_falls)):
    found = joma.bounce(steps, curve + noise)
    rise, at, chance = found.main.rebound, found.main.step, found.rebound_probability
    print(f"{name}: rises by {rise:.2f} nats from step {at:.0f}; by noise alone with p = {chance:.2g}")
    plt.plot(steps, (curve + noise).T, color="C0" if name == "bounces" else "C1", alpha=0.5)
plt.ylabel("attention entropy (nats)")
_ = plt.xlabel("step")

# %% [markdown]
# Ask it of your own curve: `joma.bounce(steps, values)`. Where one run cannot decide, `found.cannot_tell`
# is true.
