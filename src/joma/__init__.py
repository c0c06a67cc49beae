"""joma: the laboratory for the training dynamics of transformers."""
