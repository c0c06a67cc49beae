# %% [markdown]
# # The theory with your own numbers
#
# The papers' results are functions: numbers in, numbers out. Change the numbers and run it again. A few
# seconds.

# %% tags=["install"]
# %pip install -q joma

# %% [markdown]
# ## A winner in finite time (JoMA Theorem 2)
#
# With linear activation the weights of each token blow up or stop. `drive` says how strongly each token is
# pulled.

# %%
import matplotlib.pyplot as plt
import numpy as np

from joma.theory.winner_take_all import WinnerTakeAll

DRIVE = [1.0, 0.6, -0.3]
flow = WinnerTakeAll(drive=np.array(DRIVE))
end = float(flow.blow_up_time)
print(f"the winner's weight is infinite at t = {end:.4f}")
for drive, limit in zip(DRIVE, flow.limits(), strict=True):
    print(f"drive {drive:g}: ends at {limit:.4f}")
times = np.linspace(0, 0.999 * end, 200)
figure, axis = plt.subplots(figsize=(6, 3))
axis.plot(times, flow.weights(times))
axis.set(xlabel="time", ylabel="weight", ylim=(-2, 4))
axis.legend([f"drive {drive:g}" for drive in DRIVE])

# %% [markdown]
# ## Salient first (JoMA Eq. 6)
#
# With a nonlinear activation each component has a place of rest `mu`. The larger ones arrive first, so that
# attention becomes sparse and then dense again.

# %%
from joma.dynamics.salience_flow import attention_entropy
from joma.theory import salience

MU = [1.5, 2.0, 2.5, 3.0, 3.5]
times = np.geomspace(1e-3, 50, 300)
course = salience.solve(MU, times)
entropy = attention_entropy(course.v, temperature=2.0)
figure, (above, below) = plt.subplots(2, figsize=(6, 4), sharex=True)
above.semilogx(times, course.v / np.array(MU))
above.set(ylabel="v / mu")
below.semilogx(times, entropy)
below.set(xlabel="time", ylabel="entropy (nats)")
lowest = int(np.argmin(entropy))
fall, rise = entropy[0] - entropy[lowest], entropy[-1] - entropy[lowest]
print(f"the entropy falls by {fall:.2f} nats and rises by {rise:.2f}")

# %% [markdown]
# ## How much earlier? (JoMA Theorem 4)
#
# When the faster of two components has come within `delta` of its place, how far is the slower one? The
# paper bounds the ratio of their logarithms; here it is exact.

# %%
ratio = salience.asymptotic_ratio(MU[-1], MU[0])
print(f"in the end ln(1 / delta) of component {MU[-1]} is {float(ratio):.3g} times that of component {MU[0]}")

# %% [markdown]
# ## Is it true?
#
# `joma.check` computes each statement afresh. Of a misprint both errors are given: of the printed form, and
# of the corrected one.

# %%
import joma

for claim in joma.check("theorem2"):
    print(f"{claim.verdict:>10}  {claim.statement}")
