from __future__ import annotations

import pytest

import toy
from joma.core.errors import InputError
from joma.experiments import catalog
from joma.experiments.base import Experiment


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"parts": 0}, r"toy: setting parts = 0 is out of range; give a value at least 1 and at most 9"),
        ({"parts": 2.5}, "setting parts = 2.5 has the wrong type; give int"),
        ({"parts": True}, "setting parts = True has the wrong type"),
        ({"rate": 0}, "setting rate = 0 is out of range; give a value above 0"),
        ({"rate": float("nan")}, "setting rate = nan is not a finite number"),
        ({"sizes": (1, 0)}, "setting sizes = 0 is out of range"),
        ({"limit": 1}, "setting limit = 1 is out of range"),
        ({"note": "shrot"}, "setting note = 'shrot' is unknown; did you mean 'short'"),
        ({"flag": 1}, "setting flag = 1 has the wrong type; give bool"),
        ({"seed": -1}, "setting seed = -1 is out of range"),
        ({"stpes": 3}, "toy has no setting 'stpes'"),
        ({"preset": "papper"}, "toy has no preset 'papper'; did you mean 'paper'"),
    ],
)
def test_settings_are_checked(settings: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        toy.Toy.from_preset(**settings)  # type: ignore[arg-type]


def test_presets_and_replacements() -> None:
    assert toy.Toy.from_preset("paper", parts=4) == toy.Toy(parts=4, note="long")
    assert toy.Toy(rate=1).rate == 1  # an int where a float is asked for
    assert toy.Toy(limit=None, sizes=(3,)).sizes == (3,)


@pytest.mark.parametrize("name", catalog.names())
def test_every_experiment_keeps_the_contract(name: str) -> None:
    experiment = catalog.find(name)
    assert issubclass(experiment, Experiment)
    assert experiment.name() == name
    assert experiment.__doc__
    assert experiment.title
    assert experiment.reproduces
    assert experiment.presets["quick"] == {}
    assert set(experiment.presets) == set(experiment.costs()) >= {"quick", "paper"}
    # An estimate stands only where nothing was measured.
    assert not [
        preset
        for preset, cost in experiment.costs().items()
        if cost[0].isdigit() == (preset in experiment.cost)
    ]
    for preset in experiment.presets:
        assert isinstance(experiment.from_preset(preset), experiment)
