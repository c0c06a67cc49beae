"""Scan&Snap's reading of attention as learnable TF-IDF: on tokens made for it, and on real text."""

from __future__ import annotations

from dataclasses import dataclass

from joma.experiments.base import Experiment
from joma.runs.job import setting

REFERENCES = ("tf-idf", "tf", "idf", "chance")
VARIANTS = ("trained", "shuffled")


@dataclass(frozen=True, kw_only=True)
class SnapTfidf(Experiment):
    """Do learned attention logits z_ml rank tokens as tf-idf would?

    The slides call attention "learnable TF-IDF": z rises with a token's frequency with its next token and
    falls with the number of next tokens it occurs with. The Y/Z model (SGD, momentum 0.9, from zero) is
    trained on synthetic tokens whose document frequency runs from one class to all, and on windows of a
    text: last token the m-th most frequent word, context the words before it, next token the word after.
    For each last token, Spearman's correlation of z_m over the tokens it was seen with:

    - tf(l) is the frequency of l with m; idf(l) = ln(documents / documents with l), documents being
      classes (synthetic) or windows (text);
    - *chance* shuffles tf-idf over the tokens; the *shuffled* variant trains on shuffled next tokens, so
      that what correlates there does not come from prediction.

    Tables: ``tokens`` (z, tf, idf of each last token and token), ``correlations`` (of each last token),
    ``losses`` (first and last twenty batches).
    """

    title = "Is attention a learnable TF-IDF? Synthetic tokens and real text"
    reproduces = 'Scan&Snap, slide "Learnable TF-IDF"'
    cost = {"quick": "25 s", "paper": "3 min"}
    presets = {"quick": {}, "paper": {"seeds": 10, "text_steps": 6000, "vocabulary": 1000}}
    seeds: int = setting(3, "synthetic data sets, and trainings on the text", at_least=1)
    classes: int = setting(20, "synthetic: next tokens, each with a last token of its own", at_least=3)
    tokens: int = setting(60, "synthetic: contextual tokens", at_least=5)
    steps: int = setting(300, "synthetic: SGD steps", at_least=1)
    corpus: str = setting("python-reference", "text: name or path of the corpus; empty for none")
    vocabulary: int = setting(500, "text: most frequent words kept", at_least=10)
    window: int = setting(16, "text: words of context", at_least=1)
    last_tokens: int = setting(40, "text: most frequent words that serve as last tokens", at_least=1)
    least_count: int = setting(20, "text: a token must occur this often with a last token", at_least=1)
    text_steps: int = setting(1000, "text: SGD steps", at_least=1)
    batch: int = setting(128, "sequences in a batch", at_least=1)
    length: int = setting(128, "synthetic: length of a sequence", at_least=2)
    eta_y: float = setting(10.0, "learning rate of Y", above=0.0)
    eta_z: float = setting(1.0, "learning rate of Z", above=0.0)
