"""Netron: it serves a copy of a model from a folder of ours, on this machine alone."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import re
import sys
from collections.abc import Iterator

from qdq_passes.errors import UsageError

from qdqtool.io.files.progress import Warn, pass_on
from qdqtool.io.models.display import write_for_viewer
from qdqtool.io.models.load import load

#: Names by which a browser here asks.
HOSTS = ("127.0.0.1", "localhost", "[::1]")
#: Content security policy of Netron's pages: they run and ask nothing but what is served with them.
POLICY = (
    "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; frame-src 'none'; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)


class Netron:
    """A server of Netron.

    Attributes:
        url: its address.
        shown: path of the copy that it serves.
    """

    def __init__(
        self, model: str, folder: str, *, port: int = 0, browse: bool = False, warn: Warn | None = None
    ) -> None:
        """Start it.

        Args:
            model: path.
            folder: where the copy goes.
            port: on loopback; 0 for a free one.
            browse: open a browser.
            warn: is told which weights it does not show.
        """
        logging.getLogger("netron").setLevel(logging.WARNING)
        answer_safely()
        name = re.sub(r"[^\w .()+-]", "_", os.path.splitext(os.path.basename(model))[0])  # Netron escapes it nowhere
        self.shown = os.path.join(folder, f"{name}.onnx")
        self._warn = warn
        self._start(model, port, browse)

    def show(self, model: str) -> None:
        """Serve the model at ``model`` instead, at another address: the old port is not free at once."""
        self.stop()
        self._start(model, 0, browse=False)

    def stop(self) -> None:
        """Stop serving."""
        import netron

        netron.stop(self._address)

    def _start(self, model: str, port: int, browse: bool) -> None:
        import netron

        for data_file in write_for_viewer(load(model), self.shown):
            pass_on([f"{data_file} is large: Netron shows no values of its weights"], self._warn)
        with contextlib.redirect_stdout(sys.stderr), listening(port):  # older versions talk to stdout
            self._address = netron.start(self.shown, address=("127.0.0.1", port), browse=browse)
        self.url = "http://{}:{}".format(*self._address)


@contextlib.contextmanager
def listening(port: int) -> Iterator[None]:
    """Say which port it was where none can be had.

    Raises:
        UsageError: ``port`` is another's, or not for this user.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.EADDRINUSE, errno.EACCES):
            raise
        problem = f"port {port} cannot be had ({os.strerror(error.errno)})"
        raise UsageError(problem, hint="give another --port, or none for a free one") from error


def answer_safely() -> None:
    """Have servers of this process send a policy with each answer, the ``policy`` of their handler or `POLICY`.

    They refuse requests that name another host, as a stranger's page does whose name leads here."""
    from http.server import BaseHTTPRequestHandler

    parse, end = BaseHTTPRequestHandler.parse_request, BaseHTTPRequestHandler.end_headers
    if getattr(parse, "is_for_this_machine", False):
        return

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

    def end_headers(self: BaseHTTPRequestHandler) -> None:
        self.send_header("Content-Security-Policy", getattr(self, "policy", POLICY))
        end(self)

    setattr(parse_request, "is_for_this_machine", True)  # noqa: B010
    setattr(BaseHTTPRequestHandler, "parse_request", parse_request)  # noqa: B010  (methods are replaced)
    setattr(BaseHTTPRequestHandler, "end_headers", end_headers)  # noqa: B010
