"""What makes the bounce? One decoder at its dip, continued in several ways on the same batches."""

from __future__ import annotations

from dataclasses import dataclass

from joma.core.errors import InputError
from joma.experiments.shared.decoder_settings import TrainsDecoders, redefine
from joma.runs.job import setting

CHOSEN_ON = (0, 1)
"""The seeds on which the settings were chosen; none of them is judged."""
LAST = 5
"""Measured steps whose mean is the end of a curve."""
POST_NORM, PRE_NORM = "post-norm", "pre-norm, rotary"
"""Kinds of decoder: the paper's, and one as later models are built."""
TIMES = ("before", "dip", "after")
PREDICTIONS = {
    "queries_keys": "W_Q and W_K turn: in the decoder at the dip, those of the end alone bring at least half "
    "of the rise",
    "embeddings": "embeddings spread, so that logits shrink at equal W_Q and W_K: in the decoder at the dip, "
    "those of the end alone bring at least half of the rise",
    "scale": "logits shrink, by their norms: scaled to the spread within a row that they had at the dip, the "
    "end's logits lose at least half of the rise",
    "rare_tokens": "rare tokens are learnt late: the entropy of the rarest third of queries rises at least "
    "twice as much as that of the most frequent third",
    "memory": "n-grams move to the MLP: with the MLP frozen at the dip, at least half of the rise does not "
    "come",
    "norms": "gains of the layer norms: with the norms frozen at the dip, at least half of the rise does not "
    "come",
    "noise": "noise of the learning rate: the mean of the last measured weights has less entropy than they "
    "have, by at least half of the rise",
    "catch_up": "JoMA: salient keys first, the others catch up: keys that are salient at the dip lose more "
    "attention to the others until the end than keys that are salient at the end do, back to the dip",
}
"""Mechanism -> what it predicts and the others do not."""


@dataclass(frozen=True, kw_only=True)
class WhyBounce(TrainsDecoders):
    """The decoder of Fig. 6 at the dip of its attention entropy: what makes the entropy rise again?

    A decoder is trained on a text. From the state at the dip (the lowest smoothed entropy of its top layer
    within the first three quarters) it is continued in several ways on the same batches
    (``joma.branch``): with a set of parameters frozen, with all others frozen, at a tenth of the learning
    rate, with the entropy held, brought forward or, from earlier on, kept above what it rises to. Without
    training, sets of parameters of the end are put back to the dip, and those of the dip are replaced by
    those of the end. Along the whole training the entropy's change is divided among the sets, to first
    order (every two updates the gradient at the middle, times their sum).

    ``predictions`` says what each candidate mechanism predicts; it was committed before the judged run, in
    the commit that ``predicted_in`` names. A verdict rests on the 95 % interval over seeds: where it lies
    on both sides of the prediction's threshold, one cannot tell.

    The preset ``quick`` reads single characters of the World English Bible, where the dip comes early and
    little noise hides it; ``second-text`` reads the Python reference; ``pre-norm`` puts the norms before
    attention and MLP and takes rotary positions; ``times`` freezes before and after the dip, too, and so
    does ``words``, the decoder of ``fig6`` with its 500 words.

    Tables: ``bounces`` (dip, end and residual of each seed), ``sets`` (shares of the rise), ``forces``
    (nats by set, in the fall and in the rise), ``losses`` (of branches that change the entropy, less the
    twin's), ``mechanisms`` (the predictions' numbers), ``curves`` (entropy of every branch).
    """

    title = "Interventions at the dip of a decoder's attention entropy: what makes the bounce"
    reproduces = "JoMA Fig. 6 (a question to it)"
    cost = {
        "quick": "3 min",
        "second-text": "3 min",
        "pre-norm": "3 min",
        "times": "5 min",
        "words": "1 h",
        "paper": "days",
    }
    presets = {
        "quick": {},
        "second-text": {"corpus": "python-reference"},
        "pre-norm": {"decoder": PRE_NORM},
        "times": {"times": TIMES},
        "words": {
            "tokenizer": "words",
            "vocabulary_size": 500,
            "width": 128,
            "dropout": 0.2,
            "batch": 20,
            "steps": 2500,
            "learning_rate": 1e-3,
            "measure_every": 50,
            "windows": 100,
            "times": TIMES,
        },
        "paper": {
            "corpus": "wikitext-2",
            "tokenizer": "words",
            "layers": (1, 3),
            "width": 200,
            "dropout": 0.2,
            "batch": 20,
            "steps": 58_000,
            "learning_rate": 1e-4,
            "measure_every": 1000,
            "windows": None,
            "times": TIMES,
        },
    }

    corpus: str = redefine("world-english-bible", "corpus")
    tokenizer: str = setting(
        "characters", "what a token is: a character or a word", choices=("characters", "words")
    )
    decoder: str = setting(
        POST_NORM,
        "norms after attention and MLP and sinusoidal positions, or norms before them and rotary positions",
        choices=(POST_NORM, PRE_NORM),
    )
    vocabulary_size: int | None = redefine(None, "vocabulary_size")
    seed: int = setting(10, "first seed (the settings were chosen on others: 0 and 1)", at_least=0)
    seeds: int = redefine(5, "seeds", at_least=3)
    steps: int = setting(800, "minibatches", at_least=1)
    learning_rate: float = redefine(3e-3, "learning_rate")
    width: int = redefine(48, "width")
    dropout: float = redefine(0.0, "dropout")
    batch: int = redefine(16, "batch")
    measure_every: int = redefine(20, "measure_every")
    windows: int | None = redefine(24, "windows")
    divide_every: int = setting(2, "updates whose sum is divided among the sets at once", at_least=1)
    times: tuple[str, ...] = setting(
        ("dip",), "when sets are frozen: at the dip, a quarter of the way before or after it", choices=TIMES
    )
    predictions: tuple[str, ...] = setting(
        tuple(f"{name}: {words}" for name, words in PREDICTIONS.items()),
        "what each mechanism predicts, fixed before the judged run",
    )
    predicted_in: str = setting("b06773c2cf71", "commit of the predictions, before the judged run")

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.possible_dips()) < 2 * LAST:
            raise InputError(
                f"why_bounce: {self.steps} steps measured every {self.measure_every} leave "
                f"{len(self.possible_dips())} steps where the dip may be; measure more often."
            )
        if self.measure_every % self.divide_every:
            raise InputError(
                f"why_bounce: measure_every = {self.measure_every} is no multiple of divide_every = "
                f"{self.divide_every}, so that dip and end would not be seen; choose one."
            )
        if "dip" not in self.times:
            raise InputError("why_bounce: times must have 'dip' among them; the shares are those at the dip.")

    def measured_steps(self) -> list[int]:
        """Steps at which the decoder is measured, before their update."""
        return list(range(0, self.steps, self.measure_every))

    def possible_dips(self) -> list[int]:
        """The measured steps among which the dip is sought: not the first, nor the last quarter."""
        return [step for step in self.measured_steps() if 0 < step <= 0.75 * self.steps]
