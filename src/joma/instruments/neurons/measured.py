"""The defaults of a neuron run; light."""

TOKENS = 50_000
"""Tokens that are read where nobody asks for more or fewer and the text has them."""
WINDOW = 128
"""Tokens of a window."""
BATCH_TOKENS = 1_024
TOP = 16
"""Contexts kept for each neuron."""
SMALLEST = 3
"""Contexts that make a pattern."""
SHOWN = 24
"""Neurons whose contexts are shown."""
COPIES = 3
"""Untrained networks beside a model: enough for a spread."""
