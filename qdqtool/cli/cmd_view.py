"""Open MODEL in Netron, with scales and annotations of Q/DQ as metadata; served on 127.0.0.1 until interrupted."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import signal
import sys
import tempfile
import urllib.parse

import click

from qdqtool.cli.options import command, load_model, model_argument
from qdqtool.cli.render import Out, say

#: Bytes up to which a data file on another disk is copied for Netron.
COPIED = 1 << 28


@command()
@model_argument
@click.option(
    "--port", type=click.IntRange(0, 65535), default=0, metavar="N", help="Port on loopback; a free one by default."
)
@click.option("--no-browser", is_flag=True, help="Serve only; print the address.")
@click.option("--once", is_flag=True, help="Fetch the model once, to see that it is served, and stop (for scripts).")
def view(out: Out, model: str, port: int, no_browser: bool, once: bool) -> None:
    """Open MODEL in Netron, with scales and annotations of Q/DQ as metadata; served on 127.0.0.1 until interrupted."""
    import netron

    logging.getLogger("netron").setLevel(logging.WARNING)
    with tempfile.TemporaryDirectory(prefix="qdqtool-view-") as folder:
        shown = os.path.join(folder, os.path.splitext(os.path.basename(model))[0] + ".onnx")
        _annotated_copy(out, model, shown)
        with contextlib.redirect_stdout(sys.stderr):  # older versions talk to stdout
            host, port = netron.start(shown, address=("127.0.0.1", port or None), browse=not no_browser and not once)
        url = f"http://{host}:{port}"
        stop = "" if once else "  (Ctrl-C stops it)"
        out.result({"url": url, "model": model}, lambda: say(f"{url}{stop}"))
        before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that the temporary folder goes away
        try:
            if once:
                _fetch(f"{url}/data/{urllib.parse.quote(os.path.basename(shown))}", os.path.getsize(shown))
            else:
                netron.wait()
        except KeyboardInterrupt:
            pass
        finally:
            netron.stop()
            signal.signal(signal.SIGTERM, before)


def _fetch(url: str, size: int) -> None:
    """Fetch what is served, past any proxy of the environment.

    Raises:
        SetupError: it is not served, or is something else.
    """
    from urllib.request import ProxyHandler, build_opener

    from qdq_passes.errors import SetupError

    try:
        with build_opener(ProxyHandler({})).open(url, timeout=30) as answer:
            got = len(answer.read())
    except OSError as error:
        raise SetupError(
            f"is not served: {error}", where=url, hint="is something between here and 127.0.0.1?"
        ) from error
    if got != size:
        raise SetupError(
            f"{got} bytes were served, the model has {size}", where=url, hint="another server has this port"
        )


def _annotated_copy(out: Out, model: str, path: str) -> None:
    """A copy whose Q and DQ carry their encoding as metadata; data files are linked, not copied, where the system can."""
    import onnx_ir as ir
    from qdq_passes.analysis.qdq_pairs import qdq_pairs
    from qdq_passes.core.annotate import ENCODING, write_metadata

    from qdqtool.io.atomic import write_whole
    from qdqtool.io.serialize import serialize, to_bytes
    from qdqtool.io.slots import slots

    graph = load_model(model)
    for pair in qdq_pairs(graph):
        if pair.encoding is not None:
            ENCODING.set(pair.dq, pair.encoding)
            if pair.q is not None:
                ENCODING.set(pair.q, pair.encoding)
    write_metadata(graph)
    tensors = [slot.tensor for slot in slots(graph)]
    files = {t.location: t.path for t in tensors if isinstance(t, ir.ExternalTensor)}
    write_whole(path, to_bytes(serialize(graph)))
    for location, source in files.items():
        target = os.path.join(os.path.dirname(path), location)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        try:
            os.link(source, target)
        except OSError:  # another disk
            if os.path.getsize(source) > COPIED:
                out.warn(f"{source} lies on another disk and is large: Netron shows no values of its weights")
            else:
                shutil.copyfile(source, target)


command = view
