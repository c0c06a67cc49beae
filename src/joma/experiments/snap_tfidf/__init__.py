"""Scan&Snap's reading of attention as learnable TF-IDF: on tokens made for it, and on real text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from joma.experiments.base import Experiment
from joma.runs.job import setting

if TYPE_CHECKING:
    import numpy as np
    import pandas
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    from joma.claim import Claim
    from joma.dynamics.token_sgd import Batch
    from joma.progress import Progress

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
    cost: ClassVar[Mapping[str, str]] = {"quick": "25 s", "paper": "3 min"}
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "quick": {},
        "paper": {"seeds": 10, "text_steps": 6000, "vocabulary": 1000},
    }

    seeds: int = setting(3, "synthetic data sets", at_least=1)
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

    def run(self, progress: Progress) -> dict[str, pandas.DataFrame]:
        """Train on each source, with real and with shuffled next tokens."""
        import pandas as pd

        jobs = [("synthetic", self.seed + k) for k in range(self.seeds)]
        if self.corpus:
            jobs.append(("text", self.seed))
        parts = [
            progress.part(f"{source}-{seed}-{variant}", partial(self._train, source, seed, variant))
            for source, seed in progress.track(jobs, "snap_tfidf")
            for variant in VARIANTS
        ]
        rows = pd.concat(parts, ignore_index=True)
        tokens = rows[rows["metric"] == "z"].drop(columns="unit").reset_index(drop=True)
        losses = rows[rows["metric"].str.endswith("loss")]
        keep = ["source", "run", "variant", "metric", "value", "unit"]
        return {
            "tokens": tokens,
            "correlations": _correlations(tokens, self.seed),
            "losses": losses[keep].reset_index(drop=True),
        }

    def _train(self, source: str, seed: int, variant: str) -> pandas.DataFrame:
        """z, tf and idf of every last token and token after training, and the losses, in one table."""
        import numpy as np
        import pandas as pd

        from joma.dynamics.token_sgd import sgd_on_counts
        from joma.errors import DivergenceError

        shuffled = variant == "shuffled"
        made = self._synthetic(seed, shuffled) if source == "synthetic" else self._text(seed, shuffled)
        batches, frequency, rarity, outputs = made
        last_tokens, tokens = frequency.shape
        steps = self.steps if source == "synthetic" else self.text_steps
        logits, _, loss = sgd_on_counts(
            batches,
            (np.zeros((tokens, outputs)), np.zeros((last_tokens, tokens))),
            eta_y=np.array([self.eta_y]),
            eta_z=np.array([self.eta_z]),
            record=(steps,),
        )
        if not (np.isfinite(loss).all() and np.isfinite(logits).all()):
            raise DivergenceError(
                f"snap_tfidf: training on {source} left the finite numbers with eta_y = {self.eta_y:g}, "
                f"eta_z = {self.eta_z:g}; lower them."
            )
        last, token = np.nonzero(frequency)
        labels = {"source": source, "run": seed, "variant": variant}
        z = pd.DataFrame(
            {
                **labels,
                "last_token": last,
                "token": token,
                "tf": frequency[last, token],
                "idf": rarity[token],
                "metric": "z",
                "value": logits[-1, 0, last, token].astype(np.float64),
                "unit": "",
            }
        )
        ends = {"first loss": loss[:20].mean(), "last loss": loss[-20:].mean()}
        losses = pd.DataFrame(
            [
                {**labels, "metric": name, "value": float(value), "unit": "nats"}
                for name, value in ends.items()
            ]
        )
        return pd.concat([z, losses], ignore_index=True)

    def _synthetic(
        self, seed: int, shuffled: bool
    ) -> tuple[Iterator[Batch], NDArray[np.float64], NDArray[np.float64], int]:
        """Batches, tf (L, C), idf (C,), and the number of logits, of one synthetic data set."""
        import numpy as np

        from joma.data.next_token import NextTokenData

        random = np.random.default_rng([seed, 0])
        weights = np.zeros((self.classes, self.tokens))
        sizes = np.unique(np.geomspace(1, self.classes, 6).astype(int))
        for token in range(self.tokens):
            # the first tokens are distinct ones, so that every class has a token at least
            size = 1 if token < self.classes else int(random.choice(sizes))
            where = [token] if token < self.classes else random.choice(self.classes, size, replace=False)
            weights[where, token] = np.exp(random.uniform(np.log(0.1), 0.0, size))
        weights[:, 0] += 0.5  # one token that all classes share, however few tokens there are
        data = NextTokenData(weights / weights.sum(axis=1, keepdims=True), np.arange(self.classes))

        def batches() -> Iterator[Batch]:
            draw = np.random.default_rng([seed, 1])
            for _ in range(self.steps):
                n, counts = data.sample_counts(self.batch, self.length, draw)
                yield draw.permutation(n) if shuffled else n, data.last_of_next[n], counts

        rarity = np.log(self.classes / (data.conditional > 0).sum(axis=0))
        return batches(), data.conditional, rarity, data.logits

    def _text(
        self, seed: int, shuffled: bool
    ) -> tuple[Iterator[Batch], NDArray[np.float64], NDArray[np.float64], int]:
        """Batches, tf (L, V), idf (V,), and the number of logits, of windows of the corpus."""
        import numpy as np

        from joma.data.corpora import load_corpus
        from joma.data.text import tokenize
        from joma.errors import InputError

        words = tokenize(load_corpus(self.corpus), vocabulary_size=self.vocabulary)
        text, size = words.training, words.vocabulary_size
        occurrences = np.bincount(text, minlength=size)
        occurrences[0] = 0  # unknown words are no token
        frequent = np.argsort(-occurrences, kind="stable")[: self.last_tokens]
        number = np.full(size, -1)
        number[frequent] = np.arange(frequent.size)
        ends = np.arange(self.window, text.size - 1)
        ends = ends[(number[text[ends]] >= 0) & (text[ends + 1] > 0)]
        counts = np.zeros((ends.size, size), dtype=np.float32)
        for back in range(1, self.window + 1):
            counts[np.arange(ends.size), text[ends - back]] += 1
        counts[:, 0] = 0
        full = counts.any(axis=1)
        ends, counts = ends[full], counts[full]
        if ends.size < self.batch:
            raise InputError(
                f"snap_tfidf: corpus {self.corpus!r} has only {ends.size} windows of {self.window} words; "
                "give a longer text or more last_tokens."
            )
        last, following = number[text[ends]], text[ends + 1]
        draw = np.random.default_rng([seed, 2])
        if shuffled:
            following = draw.permutation(following)

        def batches() -> Iterator[Batch]:
            for _ in range(self.text_steps):
                chosen = draw.integers(0, ends.size, self.batch)
                yield following[chosen], last[chosen], counts[chosen]

        pairs = np.stack([counts[last == m].sum(axis=0) for m in range(frequent.size)]).astype(np.float64)
        frequency = np.where(
            pairs >= self.least_count, pairs / np.maximum(pairs.sum(1, keepdims=True), 1), 0.0
        )
        rarity = np.log(ends.size / np.maximum((counts > 0).sum(axis=0), 1))
        return batches(), frequency, rarity, size

    def draw(self, tables: Mapping[str, pandas.DataFrame]) -> Figure:
        """Mean correlation with each reference, trained beside shuffled, for each source."""
        import numpy as np

        from joma.reporting.figures import PALETTE, ink, panels

        correlations = tables["correlations"]
        sources = list(correlations["source"].unique())
        figure, axes = panels(1, len(sources), width=4.6, height=3.4, sharey=True)
        places = np.arange(len(REFERENCES))
        for axis, source in zip(axes[0], sources, strict=True):
            part = correlations[correlations["source"] == source]
            for offset, colour, variant in zip((-0.2, 0.2), PALETTE, VARIANTS, strict=False):
                values = part[part["variant"] == variant].groupby("reference")["value"]
                mean = values.mean().reindex(REFERENCES)
                error = (values.std() / values.count() ** 0.5).reindex(REFERENCES)
                label = "trained" if variant == "trained" else "next tokens shuffled"
                axis.bar(places + offset, mean, 0.38, yerr=2 * error, color=colour, ecolor=ink(), label=label)
            axis.axhline(0, color=ink(), linewidth=0.8)
            names = ["tf-idf shuffled\nover tokens" if name == "chance" else name for name in REFERENCES]
            axis.set_xticks(places, names)
            axis.set_axisbelow(True)
            axis.grid(axis="x", visible=False)
            lasts = len(part[["run", "last_token"]].drop_duplicates())
            name = "synthetic tokens" if source == "synthetic" else f"text: {self.corpus}"
            axis.set_title(f"{name} ({lasts} last tokens)")
        axes[0, 0].set_ylabel("rank correlation with learned z")
        title = "mean over the last tokens, ± 2 standard errors"
        figure.legend(
            *axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=2, title=title
        )
        return figure

    def claims(self, tables: Mapping[str, pandas.DataFrame]) -> list[Claim]:
        """The reading, on both sources; and whether both factors are needed."""
        from joma.claim import judge, not_tested

        correlations = tables["correlations"]
        source = 'Scan&Snap, slide "Learnable TF-IDF"'
        claims = []
        for kind in ("synthetic", "text"):
            part = correlations[correlations["source"] == kind]
            id = f"snap_tfidf.{kind}"
            statement = f"Learned attention logits rank tokens as tf-idf does ({kind})."
            if part.empty:
                reason = "no corpus was given (setting corpus)"
                claims.append(not_tested(id=id, source=source, statement=statement, reason=reason))
                continue
            trained = part[part["variant"] == "trained"].groupby("reference")["value"].mean()
            shuffled = part[part["variant"] == "shuffled"].groupby("reference")["value"].mean()
            evidence = ", ".join(f"{name} {trained[name]:.2f}" for name in REFERENCES)
            claims.append(
                judge(
                    bool(trained["tf-idf"] > 0.5 and trained["tf-idf"] > shuffled["tf-idf"] + 0.2),
                    id=id,
                    source=source,
                    statement=statement,
                    expected="mean rank correlation above 0.5, and by 0.2 above that of shuffled next tokens",
                    measured=trained["tf-idf"],
                    null=shuffled["tf-idf"],
                    null_description="trained on shuffled next tokens",
                    evidence=f"correlations with {evidence}",
                )
            )
        synthetic = correlations[
            (correlations["source"] == "synthetic") & (correlations["variant"] == "trained")
        ].pivot(index=["run", "last_token"], columns="reference", values="value")
        best = str(synthetic[["tf", "idf"]].mean().idxmax())
        margin, chance = synthetic["tf-idf"] - synthetic[best], synthetic["chance"] - synthetic[best]
        two_errors = 2 * float(margin.std()) / len(margin) ** 0.5
        claims.append(
            judge(
                bool(margin.mean() > two_errors),
                id="snap_tfidf.both_factors",
                source=source,
                statement="Both factors count: tf-idf ranks better than tf or idf alone (synthetic).",
                expected="mean correlation higher than the better factor's by more than two standard errors",
                measured=margin.mean(),
                tolerance=two_errors,
                null=chance.mean(),
                null_description="tf-idf shuffled over the tokens",
                evidence=f"{len(margin)} last tokens; the better factor is {best}",
            )
        )
        return claims


def _correlations(tokens: pandas.DataFrame, seed: int) -> pandas.DataFrame:
    """Spearman's correlation of z with each reference, for each last token with at least five tokens."""
    import numpy as np
    import pandas as pd
    from scipy.stats import rankdata

    random = np.random.default_rng([seed, 3])
    rows = []
    for (source, run, variant, last), part in tokens.groupby(["source", "run", "variant", "last_token"]):
        if len(part) < 5:
            continue
        tfidf = (part["tf"] * part["idf"]).to_numpy()
        references = {
            "tf-idf": tfidf,
            "tf": part["tf"].to_numpy(),
            "idf": part["idf"].to_numpy(),
            "chance": random.permutation(tfidf),
        }
        z = rankdata(part["value"])
        for name, reference in references.items():
            other = rankdata(reference)
            constant = np.ptp(z) == 0 or np.ptp(other) == 0  # no order: it correlates with nothing
            rows.append(
                {
                    "source": source,
                    "run": run,
                    "variant": variant,
                    "last_token": last,
                    "reference": name,
                    "metric": "rank correlation",
                    "value": 0.0 if constant else float(np.corrcoef(z, other)[0, 1]),
                    "unit": "",
                    "tokens": len(part),
                }
            )
    return pd.DataFrame(rows)
