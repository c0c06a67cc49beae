from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from joma.core.errors import InputError
from joma.core.figures import style
from joma.core.progress import Progress
from joma.experiments.scan_snap.snap_tfidf import SnapTfidf

TINY = {"seeds": 1, "classes": 8, "tokens": 24, "steps": 150, "batch": 64, "length": 64}


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """Text whose next word is told by one distinct word of the context, among common ones."""
    random = np.random.default_rng(0)
    lines = []
    for _ in range(1500):
        n = random.integers(4)
        context = random.permutation(["the", "of", "and", f"key{n}"])
        lines.append(" ".join([*context, "then", f"next{n}"]))
    path = tmp_path_factory.mktemp("corpus") / "made.txt"
    path.write_text("\n".join(lines))
    return path


@pytest.fixture(scope="module")
def experiment(text):
    return SnapTfidf(
        **TINY, corpus=str(text), vocabulary=20, window=4, last_tokens=4, text_steps=200, least_count=5
    )


@pytest.fixture(scope="module")
def tables(experiment):
    return experiment.run(Progress(quiet=True))


def test_synthetic_attention_ranks_as_tf_idf_and_not_without_labels(experiment, tables):
    claims = {claim.id: claim for claim in experiment.claims(tables)}
    assert claims["snap_tfidf.synthetic"].verdict == "holds"
    assert claims["snap_tfidf.synthetic"].null < 0.3
    swapped = tables["correlations"].replace({"variant": {"trained": "shuffled", "shuffled": "trained"}})
    claims = {claim.id: claim for claim in experiment.claims({**tables, "correlations": swapped})}
    assert claims["snap_tfidf.synthetic"].verdict == "fails"


def test_frequencies_and_rarities_of_the_synthetic_tokens(tables):
    tokens = tables["tokens"].query("source == 'synthetic' and variant == 'trained'")
    np.testing.assert_allclose(tokens.groupby("last_token")["tf"].sum(), 1.0)
    held = tokens.groupby("token").size()
    np.testing.assert_allclose(tokens.groupby("token")["idf"].first(), np.log(8 / held), atol=1e-12)
    assert held.loc[0] == 8


def test_text_attention_finds_the_telling_words(tables):
    """After "then", the fourth word in the alphabet of the equally frequent ones."""
    tokens = tables["tokens"].query("source == 'text' and variant == 'trained' and last_token == 3")
    assert len(tokens) == 7  # the, of, and; four keys
    told = tokens.sort_values("value", ascending=False)["idf"].to_numpy()
    assert told[:4].min() > told[4:].max()


def test_only_real_next_tokens_can_be_learned(tables):
    losses = tables["losses"].pivot_table(index=["source", "variant"], columns="metric", values="value")
    for source, margin in (("synthetic", 1.0), ("text", 0.5)):
        last = losses["last loss"].xs(source)
        assert last["trained"] < last["shuffled"] - margin
        assert losses.loc[(source, "trained"), "last loss"] < losses.loc[(source, "trained"), "first loss"]


def test_without_a_corpus_the_text_is_not_tested_and_tables_repeat():
    experiment = SnapTfidf(**{**TINY, "steps": 10}, corpus="")
    one, two = (experiment.run(Progress(quiet=True)) for _ in range(2))
    pd.testing.assert_frame_equal(one["correlations"], two["correlations"], check_exact=True)
    verdicts = {claim.id: claim.verdict for claim in experiment.claims(one)}
    assert verdicts["snap_tfidf.text"] == "not tested"


def test_the_figure_is_drawn(experiment, tables):
    with style("light"):
        figure = experiment.draw(tables)
        figure.canvas.draw()
    assert len(figure.axes) == 2


def test_a_text_too_short_is_named(tmp_path):
    path = tmp_path / "short.txt"
    path.write_text("a few words are not enough " * 3)
    with pytest.raises(InputError, match=r"has only \d+ windows"):
        SnapTfidf(**TINY, corpus=str(path)).run(Progress(quiet=True))
