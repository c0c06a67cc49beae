"""Attention entropy and its like, exact, without the T x T matrix."""
