"""One module per figure or table of a paper; see :mod:`joma.experiments.base`."""
