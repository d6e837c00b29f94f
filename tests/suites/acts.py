"""Which models each step acts on: ``acts.json``, made by ``python -m tests.suites.acts``, says some for every step, none where it leaves
all of them alone. The part tries each step on those, and few of the others."""

from __future__ import annotations

import json
import tempfile
import zlib
from collections.abc import Iterable
from pathlib import Path

import onnx_ir as ir
from qdq_passes.errors import QdqError

from tests.suites.cases import Case
from tests.suites.files import loaded
from tests.suites.run import every_case
from tests.suites.steps import Step, all_steps

FILE = Path(__file__).with_name("acts.json")
#: Models that are written down for a step.
ENOUGH = 8


def acts() -> dict[str, list[str]]:
    """Step → names of cases that it acts on."""
    found: dict[str, list[str]] = json.loads(FILE.read_text(encoding="utf-8"))
    return found


def search(cases: Iterable[Case], steps: Iterable[Step]) -> dict[str, list[str]]:
    """Try ``steps`` on ``cases`` until there are `ENOUGH` for each."""
    found: dict[str, list[str]] = {step.text: [] for step in steps}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.onnx"
        for case in cases:
            file.write_bytes(case.model)
            model = None
            for step in steps:
                if len(found[step.text]) < ENOUGH:
                    model = model or loaded(file)
                    if _acts(step, model):
                        found[step.text].append(case.name)
                        model = None
    return found


def _acts(step: Step, model: ir.Model) -> bool:
    try:
        return step.pipeline.run(model).modified
    except QdqError:
        return False


if __name__ == "__main__":
    shuffled = sorted(every_case(), key=lambda case: zlib.crc32(case.name.encode()))
    rows = (f"{json.dumps(step)}: {json.dumps(names)}" for step, names in search(shuffled, all_steps()).items())
    FILE.write_text("{\n" + ",\n".join(rows) + "\n}\n", encoding="utf-8")
