"""The public names, each with its home: ``__init__`` reads these lines and imports a name when it is used."""

from joma import hf as hf
from joma import lightning as lightning
from joma import theory as theory
from joma.checkpoints.ranks import probe_weights as probe_weights
from joma.checks.catalog import check as check
from joma.core.claim import Claim as Claim
from joma.core.errors import InputError as InputError
from joma.core.errors import JomaError as JomaError
from joma.core.errors import RunDirectoryError as RunDirectoryError
from joma.core.errors import UnfinishedError as UnfinishedError
from joma.core.version import __version__ as __version__
from joma.experiments.catalog import list_experiments as list_experiments
from joma.instruments.branch.branch import BranchResult as BranchResult
from joma.instruments.branch.branch import branch as branch
from joma.instruments.monitor.alarms.telling import StopTraining as StopTraining
from joma.instruments.monitor.monitor import Monitor as Monitor
from joma.instruments.neurons.probe import NeuronsResult as NeuronsResult
from joma.instruments.probe.probe import ProbeResult as ProbeResult
from joma.instruments.probe.probe import probe as probe
from joma.instruments.reading.loading import load_model as load_model
from joma.instruments.sparsity.find import SparsityResult as SparsityResult
from joma.instruments.sparsity.find import sparsity as sparsity
