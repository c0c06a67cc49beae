"""Scan&Snap (arXiv 2305.16380): what it proves of a one-layer transformer, as printed and as correct.

``equations`` holds the Y/Z dynamics and Lemma 2, ``decoder`` the decoder's closed form and Theorem 1,
``fates`` Theorems 2 and 3, ``snapping`` Theorem 4 and its hypothesis.
"""
