"""A grid of runs: which cells there are, each computed into a directory of its own, by any executor."""
