"""``joma.cite``: what to cite for a result, as BibTeX."""

from __future__ import annotations

from joma.core.tables import Tables
from joma.core.version import __version__, commit
from joma.report.results import RunResult
from joma.runs.result import JobResult

_JOMA = """@software{{joma,
  title = {{joma: the laboratory for the training dynamics of transformers}},
  author = {{{{The joma developers}}}},
  version = {{{version}}},
}}"""
_PAPERS = {
    "JoMA": """@inproceedings{tian2024joma,
  title = {JoMA: Demystifying Multilayer Transformers via JOint Dynamics of MLP and Attention},
  author = {Tian, Yuandong and Wang, Yiping and Zhang, Zhenyu and Chen, Beidi and Du, Simon},
  booktitle = {International Conference on Learning Representations},
  year = {2024},
  url = {https://arxiv.org/abs/2310.00535},
}""",
    "Scan&Snap": """@inproceedings{tian2023scan,
  title = {Scan and Snap: Understanding Training Dynamics and Token Composition in 1-layer Transformer},
  author = {Tian, Yuandong and Wang, Yiping and Chen, Beidi and Du, Simon},
  booktitle = {Advances in Neural Information Processing Systems},
  year = {2023},
  url = {https://arxiv.org/abs/2305.16380},
}""",
}
"""How a claim's source begins -> the paper."""


def cite(found: Tables | None = None) -> str:
    """Return BibTeX for joma, its version and commit, and for the papers whose statements a result judges.

    Args:
        found: a result of ``joma.run``, ``joma.read``, ``joma.probe`` ...; None: both papers.

    Examples:
        >>> joma.cite().count("@inproceedings")
        2
    """
    claims = found.claims if isinstance(found, RunResult | JobResult) else []
    sources = " ".join(claim.source for claim in claims)
    papers = [text for name, text in _PAPERS.items() if found is None or name in sources]
    built = commit()
    version = f"{__version__}, commit {built}" if built else __version__
    return "\n\n".join([_JOMA.format(version=version), *papers])
