"""`qdqtool view` in a real browser: Netron draws the quantized digits CNN, and the page names its operators."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.extra.part import Failed, Missing, call, environment

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
DRIVER = Path(__file__).with_name("browse.py")


def run() -> str:
    """Serve the model, let the browser draw it, look for operators in the page."""
    browser = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if browser is None:
        raise Missing(" or ".join(BROWSERS))
    python = environment("browser", ["playwright>=1.48,<2"])
    qdqtool = str(Path(sys.executable).parent / "qdqtool")
    with tempfile.TemporaryDirectory() as folder:
        model = str(Path(folder) / "digits_int8.onnx")
        call([qdqtool, "demo", "-q", "-o", model])
        server = subprocess.Popen([qdqtool, "view", "--no-browser", "--json", model], stdout=subprocess.PIPE, text=True)
        try:
            page = call([python, str(DRIVER), browser, _url(server)])
        finally:
            server.terminate()
            server.wait()
    for text in ("Conv", "QuantizeLinear", "DequantizeLinear"):
        if text not in page:
            raise Failed(f"the page does not show {text}")
    return f"Netron draws {page.split().count('QuantizeLinear')} QuantizeLinear nodes"


def _url(server: subprocess.Popen[str]) -> str:
    assert server.stdout is not None
    for line in server.stdout:
        if '"url"' in line:
            return line.split('"')[3]
    raise Failed("view printed no address")
