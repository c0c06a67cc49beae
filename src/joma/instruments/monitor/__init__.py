"""A training run watched while it runs: a monitor, its messages, and where its numbers go."""
