"""``joma.branch``: the same state continued in several ways, and what each does beside its twin."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from joma.core.files import user_path
from joma.core.progress import Progress, in_turn
from joma.instruments.branch import BranchSettings
from joma.instruments.branch.interventions import Way, read_interventions
from joma.instruments.branch.measure import measure_branches
from joma.instruments.branch.training import Make, Step
from joma.runs.directory import run_experiment
from joma.runs.result import JobResult


@dataclass(frozen=True, repr=False)
class BranchResult(JobResult):
    """What ``branch`` returns.

    Tables: ``differences`` (a row per branch, metric and step: the mean over seeds of the branch less its
    twin, its 95 % interval by Student's t, NaN of one seed or of seeds that make no difference, and
    ``twin_spread``, the root mean square difference of twins that read the same batches in another order, NaN
    without such twins) and ``curves`` (every value of every branch).
    """


def branch(
    make: Make,
    step: Step,
    *,
    at: int,
    interventions: Mapping[str, Way],
    steps: int,
    seeds: int = 3,
    orders: int = 1,
    out: str | Path | None = None,
    quiet: bool = True,
) -> BranchResult:
    """Continue one state of a training in several ways, on the same batches and random numbers.

    For each seed the model is trained for ``at`` steps. From that state a twin goes on unchanged, and each
    branch goes on with its intervention. The random numbers of a step (PyTorch's own) follow from the seed
    and the step, so that dropout is the twin's, too. Training is done on one thread.

    Args:
        make: called without arguments, after PyTorch's seed is set; returns (model, optimizer, batches),
            where ``batches[step]`` is the batch of a step. What a model or optimizer keeps outside of its
            ``state_dict`` is not carried over.
        step: called with the model and a batch; returns the loss (nats, say; a scalar with its gradient) or a
            mapping with "loss" and further numbers, which are compared, too.
        at: steps before the branches part.
        interventions: name of a branch -> what is done, in words: ``"freeze PATTERN ..."``,
            ``"rewind PATTERN ... to STEP"`` (0 without ``to``), ``"rate FACTOR PATTERN ..."`` (times what the
            optimizer would move), ``"reset-optimizer"``, ``"none"``; a pattern is the name of parameters, in
            which ``*`` stands for any letters, and ``[:96]`` behind it for the first 96 rows.
            ``"hold-entropy"`` adds to the loss 10 times the square by which each layer's mean attention
            entropy (nats) leaves its value at the first step (``"hold-entropy 1.5 times 100"``: another
            target and strength), ``"entropy-floor 1.5"`` and ``"entropy-ceiling 1.5"`` what is below or
            above. ``"uniform-attention"``, ``"mean-attention"`` (over the samples of a batch: what depends on
            positions alone), ``"frozen-attention"`` (as the model where the branches part attends on the same
            batch; ``step`` is called with it, too) and ``"attention-temperature 2"`` replace the attention of
            every call, in memory that grows with the text's square. Entropy and attention are those of
            ``scaled_dot_product_attention`` and of joma's own decoders. Or a function of model and optimizer,
            called once, which changes them in place. Or other batches, which are read in the place of the
            twin's.
        steps: steps of each branch.
        seeds: trainings, with seeds 0, 1, ...
        orders: further twins of each seed that read the twin's batches in another order.
        out: a run directory, in which finished branches are kept: the same call continues there.
            A directory knows interventions by their words, and cannot tell other functions from these.
        quiet: whether no progress is shown.

    Raises:
        InputError: a state that does not fit, batches that cannot be repeated, an intervention that names
            nothing, a step that hides its loss.
        RunDirectoryError: ``out`` is another run's.

    Examples:
        >>> def make():
        ...     model = torch.nn.Linear(2, 1)
        ...     batches = torch.randn(20, 8, 2, generator=torch.Generator().manual_seed(0))
        ...     return model, torch.optim.SGD(model.parameters(), lr=0.1), batches
        >>> def step(model, batch):
        ...     return (model(batch) - batch.sum(-1, keepdim=True)).square().mean()
        >>> found = joma.branch(
        ...     make, step, at=5, interventions={"same": "none", "frozen": "freeze weight"}, steps=10
        ... )
        >>> same = found.table("differences").query("branch == 'same'")
        >>> float(same["value"].abs().max())
        0.0
    """
    chosen = read_interventions(interventions, at)
    said = tuple(f"{one.name}: {_words(interventions[one.name])}" for one in chosen)

    def run(self: BranchSettings, progress: Progress) -> dict[str, pd.DataFrame]:
        return measure_branches(self, make, step, chosen, progress)

    bound = type("BranchSettings", (BranchSettings,), {"run": run, "__module__": BranchSettings.__module__})
    job: BranchSettings = bound(at=at, steps=steps, seeds=seeds, orders=orders, interventions=said)
    if out is None:
        return BranchResult(job, job.run(Progress(quiet=quiet)))
    kept = run_experiment(job, user_path(out), quiet=quiet, executor=in_turn)
    return BranchResult(job, kept.tables)


def _words(said: Way) -> str:
    return said if isinstance(said, str) else getattr(said, "__qualname__", type(said).__name__)
