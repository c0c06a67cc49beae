"""What the papers prove: numbers in, numbers out, one module per result.

``RESULTS`` lists every theorem, lemma, equation, figure and table with its functions, checks and experiments.
"""

from joma.theory.results import RESULTS, Result

__all__ = ["RESULTS", "Result"]
