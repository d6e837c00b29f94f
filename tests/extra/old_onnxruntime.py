"""The oldest onnxruntime that is supported: the unit and golden tests and those of the simulated NPU, and the models we make load in it."""

from __future__ import annotations

from tests.extra.part import environment, summary_with

OLDEST = "1.23.2"


def run(whole: bool) -> str:
    """Run the tests in an environment with the oldest onnxruntime."""
    python = environment("old-onnxruntime", ["-e", ".[test]", f"onnxruntime=={OLDEST}"])
    return summary_with(python, "not extra and not newest", whole=whole)
