"""What each key receives: mass, maximum, and the change of the output without it."""
