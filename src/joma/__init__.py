"""joma: the laboratory for the training dynamics of transformers."""
__version__ = "0.1.0"
