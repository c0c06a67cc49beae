"""One module per figure or table of a paper; see ``joma.experiments.base``."""
