"""The figures, theorems and slides of Scan&Snap (arXiv 2305.16380)."""
