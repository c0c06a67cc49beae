"""Weights on disk and in memory, matrix by matrix, and their ranks."""
