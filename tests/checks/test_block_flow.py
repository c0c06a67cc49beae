from __future__ import annotations

from joma.checks.block_flow import block_bounce, block_flow


def test_the_prints_are_corrected_and_the_rest_holds():
    verdicts = {claim.id: claim.verdict for claim in [*block_flow(), *block_bounce()]}
    corrected = {"block_flow.gate", "block_flow.rest", "block_flow.ratio", "block_bounce.figure_4"}
    assert {name for name, verdict in verdicts.items() if verdict == "corrected"} == corrected
    assert set(verdicts.values()) == {"corrected", "holds"}
