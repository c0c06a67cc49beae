"""Choose a learning rate with Optuna, and see beside each trial what its attention did.

python examples/tune_with_optuna.py [TEXT] [TRIALS] [STEPS]

It needs ``pip install optuna``. TEXT is a corpus name or a file (default: the language reference that every
CPython carries). Each trial is a sweep over two seeds; a study that is broken off finds its cells again.
"""

import sys
from pathlib import Path

import optuna

import joma


def main(
    text: str = "python-reference", trials: str = "8", steps: str = "400", out: str = "runs/tune"
) -> None:
    """Minimise the held-out loss over the learning rate; print each trial with its entropy's fall."""

    def objective(trial: optuna.Trial) -> float:
        rate = trial.suggest_float("learning_rate", 1e-4, 3e-2, log=True)
        found = joma.sweep(
            "fig8",
            {"learning_rate": [rate], "seed": [0, 1]},
            corpus=text, steps=int(steps), width=32, hidden=32, measure_every=int(steps) // 10,
            out=Path(out) / f"trial-{trial.number}", quiet=True,
        )  # fmt: skip
        curves = found.summary().set_index(["metric", "step"])["mean"]
        entropy = curves["attention_entropy"]
        trial.set_user_attr("entropy_fell_by", float(entropy.iloc[0] - entropy.min()))
        return float(curves["validation_loss"].iloc[-1])

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(direction="minimize", sampler=optuna.samplers.TPESampler(seed=0))
    study.optimize(objective, n_trials=int(trials))
    for trial in study.trials:
        fall = trial.user_attrs["entropy_fell_by"]
        rate = trial.params["learning_rate"]
        print(f"learning rate {rate:.2e}: loss {trial.value:.3f}; the entropy fell by {fall:.3f} nats")
    print(f"best learning rate: {study.best_params['learning_rate']:.2e}")


if __name__ == "__main__":
    main(*sys.argv[1:])
