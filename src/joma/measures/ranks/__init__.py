"""Stable rank and spectral norm, with a stated bound, without a full decomposition."""
