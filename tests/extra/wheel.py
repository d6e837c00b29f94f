"""The wheel of the sdist alone, in a fresh environment and an empty folder, does the main job."""

from __future__ import annotations

import tarfile
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
#: What the sdist is too large with, and bytes of it at most: sources and pages, no data of tests.
LEFT_OUT, SDIST = ("tests/", "sample_models/"), 3 << 20


def run() -> str:
    """Build the sdist and of it the wheel, look into both, install the wheel, run the demo."""
    builder = environment("build", ["build", "scikit-build-core>=0.11,<2"])
    with tempfile.TemporaryDirectory() as folder:
        call([builder, "-m", "build", "--outdir", folder, str(ROOT)])
        source = _checked_sdist(Path(folder))
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
    return f"{wheel.name}, {size / 1024:.0f} KiB, runs the demo; made of {source}"


def _checked_sdist(folder: Path) -> str:
    """The name and size of the sdist in ``folder``.

    Raises:
        Failed: it holds data of tests, or is too large.
    """
    sdist = next(folder.glob("*.tar.gz"))
    with tarfile.open(sdist) as archive:
        inside = [name.partition("/")[2] for name in archive.getnames()]
    if found := [name for name in inside if name.startswith(LEFT_OUT)]:
        raise Failed(f"the sdist holds {found[0]} and {len(found) - 1} more")
    size = sdist.stat().st_size
    if size > SDIST or "LICENSE" not in inside:
        raise Failed(
            f"the sdist has {size:,} bytes, {SDIST:,} allowed, and {'a' if 'LICENSE' in inside else 'no'} LICENSE"
        )
    return f"{sdist.name}, {size / 1024:.0f} KiB"
