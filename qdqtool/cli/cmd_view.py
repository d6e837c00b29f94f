"""Open MODEL in Netron, with scales and annotations of Q/DQ as metadata; served on 127.0.0.1 until interrupted."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import tempfile
import urllib.parse

import click

from qdqtool.cli.options import command, load_model, model_argument
from qdqtool.cli.render import Out, say

#: Names by which a browser here asks.
HOSTS = ("127.0.0.1", "localhost", "[::1]")


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

    from qdqtool.io.models.display import write_for_viewer

    logging.getLogger("netron").setLevel(logging.WARNING)
    with tempfile.TemporaryDirectory(prefix="qdqtool-view-") as folder:
        shown = os.path.join(folder, os.path.splitext(os.path.basename(model))[0] + ".onnx")
        for data_file in write_for_viewer(load_model(model), shown):
            out.warn(f"{data_file} is large: Netron shows no values of its weights")
        _answer_this_machine_alone()
        with contextlib.redirect_stdout(sys.stderr):  # older versions talk to stdout
            host, port = netron.start(shown, address=("127.0.0.1", port), browse=not no_browser and not once)
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


def _answer_this_machine_alone() -> None:
    """Have servers of this process refuse requests that name another host, as a stranger's page does whose name leads here."""
    from http.server import BaseHTTPRequestHandler

    parse = BaseHTTPRequestHandler.parse_request

    def parse_request(self: BaseHTTPRequestHandler) -> bool:
        if not parse(self):
            return False
        port = self.connection.getsockname()[1]
        if self.headers.get("Host", "").lower() in {f"{host}:{port}" for host in HOSTS} | set(
            HOSTS if port == 80 else ()
        ):
            return True
        self.send_response(403)  # the error page of the base class logs what netron cannot write
        self.end_headers()
        return False

    setattr(BaseHTTPRequestHandler, "parse_request", parse_request)  # noqa: B010  (a method is replaced)


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


command = view
