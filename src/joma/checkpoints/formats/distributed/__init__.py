"""Checkpoints that many processes saved together, each its part: how their parts are found and gathered."""
