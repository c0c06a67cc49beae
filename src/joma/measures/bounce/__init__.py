"""Dip and bounce: does a noisy curve fall and rise again, when, how far, and could it be noise?"""

from joma.measures.bounce.found import Bounce, bounce
from joma.measures.bounce.valleys import Dip, smooth

__all__ = ["Bounce", "Dip", "bounce", "smooth"]
