"""The pass library under the name of this package: ``from qdqtool.passes import Pass, Pipeline``."""

from __future__ import annotations

from qdq_passes import (
    Change,
    Hook,
    Keeps,
    Pass,
    Pipeline,
    dump,
    from_gs,
    parse_pipeline,
    run_pipeline,
    skip,
    surgeon_pass,
    to_gs,
    verify,
)

__all__ = [
    "Change",
    "Hook",
    "Keeps",
    "Pass",
    "Pipeline",
    "dump",
    "from_gs",
    "parse_pipeline",
    "run_pipeline",
    "skip",
    "surgeon_pass",
    "to_gs",
    "verify",
]
