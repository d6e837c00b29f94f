"""Start-up: what the command line adds to the imports it cannot do without."""

from __future__ import annotations

from importlib.resources import as_file, files

from tests.bench.measure import PYTHON, QDQTOOL, Result, ratio


def results() -> list[Result]:
    """`--help` against `import click` (at most 2×), `inspect` of the digits CNN against `import onnx` (at most 1.8×)."""
    with as_file(files("qdqtool") / "_demo" / "digits.onnx") as model:
        return [
            ratio("qdqtool --help / import click", [QDQTOOL, "--help"], [PYTHON, "-c", "import click"], bound=2.0),
            ratio(
                "qdqtool inspect / import onnx",
                [QDQTOOL, "inspect", str(model)],
                [PYTHON, "-c", "import onnx"],
                bound=1.8,
            ),
        ]
