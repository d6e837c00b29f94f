"""The newest onnxruntime there is: the unit and golden tests and those of the simulated NPU in it, where `make test`, which runs in
the present environment, has an older one."""

from __future__ import annotations

import json
import sys
from importlib.metadata import version

from tests.extra.part import Failed, Missing, call, environment, summary_with


def run(whole: bool) -> str:
    """Look for a newer one, and run the tests in the environment that has the newest."""
    present = version("onnxruntime")
    newest = _newer() or present
    if newest == present:
        return f"{newest}, which `make test` has run in"
    python = environment("new-onnxruntime", ["-e", ".[test]", f"onnxruntime=={newest}"])
    return f"{newest}: {summary_with(python, 'not extra', whole=whole)}"


def _newer() -> str | None:
    """The release that pip would put in place of the installed one, None when it would leave it.

    Raises:
        Missing: pip cannot ask its index.
    """
    pip = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--dry-run", "--quiet", "--no-deps"]
    try:
        planned = json.loads(call([*pip, "--upgrade", "--report", "-", "onnxruntime"]))["install"]
    except Failed as error:
        raise Missing(f"an index of packages ({str(error).splitlines()[-1]})") from error
    return str(planned[0]["metadata"]["version"]) if planned else None
