"""The figures, tables and theorems of JoMA (arXiv 2310.00535)."""
