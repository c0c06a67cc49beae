"""JoMA Theorem 2 by hand: with linear activation one token wins, in finite time.

python examples/winner_takes_all.py
"""

import numpy as np

from joma.dynamics import salience_flow
from joma.theory.salience import solve
from joma.theory.winner_take_all import WinnerTakeAll

# Three tokens whose back-propagated gradients pull at one hidden node with 1, 0.6 and -0.3.
linear = WinnerTakeAll(drive=np.array([1.0, 0.6, -0.3]))
end = float(linear.blow_up_time)
print(f"the winner's weight reaches infinity at t = {end:.4f}")
for share in (0.5, 0.9, 0.999):
    print(f"  t = {share:5.3f} of it: v =", np.round(linear.weights(share * end), 4))
print("the losers stop at", np.round(linear.limits(), 4))

# A nonlinear activation has critical points mu instead (JoMA Eq. 6): salient components come first, the
# others follow, and the attention's entropy dips and bounces back.
mu = np.array([1.5, 2.0, 2.5, 3.0, 3.5])
times = np.geomspace(1e-3, 50, 400)
entropy = salience_flow.attention_entropy(solve(mu, times).v, temperature=2.0)
lowest = int(np.argmin(entropy))
print(f"entropy: {entropy[0]:.3f} nats, at least {entropy[lowest]:.3f} at t = {times[lowest]:.3f},", end=" ")
print(f"{entropy[-1]:.3f} at the end")
