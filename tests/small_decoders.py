"""Settings of decoders that train in a second, for the tests of all experiments that train some."""

SMALL_DECODERS = {
    "corpus": "python-reference",
    "vocabulary_size": 50,
    "layers": (1, 2),
    "seeds": 1,
    "steps": 60,
    "width": 8,
    "hidden": 8,
    "batch": 4,
    "length": 12,
    "measure_every": 5,
    "windows": 4,
}
