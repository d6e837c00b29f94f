"""The wheel alone, in a fresh environment and an empty folder, does the main job."""

from __future__ import annotations

import tempfile
import zipfile
from pathlib import Path

from qdqtool.npu.library import NAME
from tests.extra.part import ROOT, Failed, call, environment

CARRIED = (
    "qdqtool/_demo/digits.onnx",
    "qdqtool/presets/xint8.toml",
    "qdqtool/targets/generic_int8.toml",
    f"qdqtool/npu/{NAME}",
    "qdq_passes/core/base.py",
)


def run() -> str:
    """Build the wheel, look into it, install it, run the demo."""
    builder = environment("build", ["build", "scikit-build-core>=0.11,<2"])
    with tempfile.TemporaryDirectory() as folder:
        call([builder, "-m", "build", "--wheel", "--outdir", folder, str(ROOT)])
        wheel = next(Path(folder).glob("*.whl"))
        if "-py3-none-" not in wheel.name or wheel.name.endswith("-any.whl"):
            raise Failed(f"{wheel.name} is not for every Python of this platform")
        with zipfile.ZipFile(wheel) as archive:
            missing = set(CARRIED) - set(archive.namelist())
        if missing:
            raise Failed(f"the wheel lacks {', '.join(sorted(missing))}")
        size = wheel.stat().st_size
        python = environment("wheel", [])
        call(
            [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--force-reinstall", str(wheel)]
        )
        qdqtool = str(Path(python).parent / "qdqtool")
        shown = call([qdqtool, "demo", "-o", "digits_int8.onnx"], cwd=Path(folder))
    if "onnx.checker accepted" not in shown or "max LSB 0" not in shown:
        raise Failed(shown)
    return f"{wheel.name}, {size / 1024:.0f} KiB, runs the demo"
