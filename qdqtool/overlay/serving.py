"""The server of the page: on this machine alone, and edits only for who holds the key that the page was given."""

from __future__ import annotations

import json
import re
import secrets
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from qdq_passes.errors import QdqError, UsageError
from qdq_passes.numerics.documents import json_of

from qdqtool.io.files.progress import Warn
from qdqtool.overlay.editing import Chosen
from qdqtool.overlay.models import Overlay
from qdqtool.overlay.netron_beside import Netron, answer_safely, listening
from qdqtool.page.report_page import filled, page_file, policy_of, script_of

PACKAGE = "qdqtool.overlay"
#: The page's scripts, each knowing those before it.
SCRIPTS = ("layout.js", "colours.js", "panes.js", "fields.js", "overlay.js")
#: Bytes of a request at most.
LARGEST = 1 << 20
#: Seconds that an edit which runs is waited for at the end.
PATIENCE = 30


class Server:
    """Serves the page of an overlay, and takes its edits one at a time."""

    def __init__(self, overlay: Overlay, folder: str, port: int = 0, warn: Warn | None = None) -> None:
        """Start serving; Netron starts when it is asked for.

        Args:
            overlay: what the page holds.
            folder: of our own, for what Netron serves.
            port: on loopback; 0 for a free one.
            warn: is told which weights Netron does not show.
        """
        answer_safely()
        self._overlay, self._folder, self._warn = overlay, folder, warn
        self._key, self._lock = secrets.token_urlsafe(), threading.Lock()
        self._netron: Netron | None = None
        self._shown, self._is_stopped = "", False
        self._actions: Mapping[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
            "/edit": self._edit, "/pick": self._pick, "/mend": self._mend, "/undo": self._undo, "/measure": self._measure,
            "/select": self._select,
        }  # fmt: skip
        self._style = page_file("qdqtool.page", "report.css") + "\n" + page_file(PACKAGE, "overlay.css")
        self._script = "\n".join([page_file(PACKAGE, "dagre.min.js"), script_of(*SCRIPTS, package=PACKAGE)])
        self.policy = policy_of(self._style, self._script, "'self'")
        with listening(port):
            self._http = ThreadingHTTPServer(("127.0.0.1", port), _handler(self))
        self._http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._http.server_port}"
        self._thread = threading.Thread(target=self._http.serve_forever, daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Serve until interrupted."""
        self._thread.join()

    def stop(self) -> None:
        """Stop serving; an edit that runs is waited for, so that its folder can go and its script is whole."""
        self._is_stopped = True
        self._http.shutdown()
        self._http.server_close()
        if self._lock.acquire(timeout=PATIENCE):
            self._lock.release()
        if self._netron is not None:
            self._netron.stop()

    def page(self) -> str:
        """The HTML."""
        with self._lock:
            data = self._overlay.state() | {"key": self._key}
        return filled(
            page_file(PACKAGE, "overlay.html"),
            self.policy,
            title=", ".join(model["label"] for model in data["models"]),
            style=self._style,
            data=data,
            script=self._script,
        )

    def answer(
        self, path: str, key: str, length: str, read: Callable[[int], bytes]
    ) -> tuple[HTTPStatus, dict[str, Any]]:
        """Return what a request of the page is told: what it asked for, or ``error`` and ``hint``.

        Args:
            path: of the request.
            key: that the page was given; nothing is read of a request with another.
            length: bytes of its body, as its header says.
            read: reads so many.
        """
        if not re.fullmatch("[0-9]{1,19}", length):
            return HTTPStatus.BAD_REQUEST, {"error": "Content-Length is no number of bytes"}
        if int(length) > LARGEST:
            return HTTPStatus.REQUEST_ENTITY_TOO_LARGE, {"error": f"a request has {LARGEST} bytes at most"}
        action = self._actions.get(path)
        if action is None:
            return HTTPStatus.NOT_FOUND, {"error": f"there is no {path}"}
        if not secrets.compare_digest(key.encode(), self._key.encode()):
            return HTTPStatus.FORBIDDEN, {"error": "the page is of another run of `view`", "hint": "load it again"}
        try:
            try:
                asked = json_of(read(int(length)) or b"{}")
            except ValueError as error:
                raise UsageError(f"is no JSON: {error}") from error
            if not isinstance(asked, dict):
                raise UsageError("the request is no object")
            with self._lock:
                if self._is_stopped:
                    raise UsageError("`qdqtool view` was stopped", hint="start it again")
                return HTTPStatus.OK, action(asked)
        except QdqError as error:
            told = f"{error.where}: {error.message}" if error.where else error.message
            return HTTPStatus.BAD_REQUEST, {"error": told, "hint": error.hint}
        except Exception as error:  # noqa: BLE001  (whatever a runtime raises: the page waits for an answer)
            told, hint = f"{type(error).__name__}: {error}", "load the page again: it shows what was edited"
            return HTTPStatus.INTERNAL_SERVER_ERROR, {"error": told, "hint": hint}

    def _edit(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        options = asked.get("options", {})
        if not isinstance(options, dict):
            raise UsageError("options is no object")
        self._overlay.edit(str(asked.get("command", "")), options, _chosen(asked))
        return self._overlay.state()

    def _pick(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        self._overlay.pick(str(asked.get("option", "")), _chosen(asked))
        return self._overlay.state()

    def _mend(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        self._overlay.mend(str(asked.get("name", "")), str(asked.get("kind", "")))
        return self._overlay.state()

    def _undo(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        self._overlay.undo()
        return self._overlay.state()

    def _measure(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        self._overlay.measure()
        return self._overlay.state()

    def _select(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        return dict(self._overlay.hit(str(asked.get("text", ""))))

    def netron(self) -> str:
        """The address of Netron with the model as it is edited."""
        with self._lock:
            current = self._overlay.editor.current
            if self._netron is None:
                self._netron = Netron(current, self._folder, warn=self._warn)
            elif self._shown != current:
                self._netron.show(current)
            self._shown = current
            return self._netron.url


def _chosen(asked: Mapping[str, Any]) -> Chosen:
    return Chosen(**{name: _texts(asked, name) for name in ("tensors", "nodes", "selectors")})


def _texts(asked: Mapping[str, Any], name: str) -> tuple[str, ...]:
    found = asked.get(name, [])
    if not isinstance(found, list) or not all(isinstance(text, str) for text in found):
        raise UsageError(f"{name} is no list of names")
    return tuple(found)


def _handler(server: Server) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        policy = "default-src 'none'; frame-ancestors 'none'"

        def do_GET(self) -> None:
            if self.path == "/":
                self.policy = f"{server.policy}; frame-ancestors 'none'"
                self._say(HTTPStatus.OK, "text/html; charset=utf-8", server.page().encode())
            elif self.path == "/netron":
                self.send_response(HTTPStatus.SEE_OTHER)
                self.send_header("Location", server.netron())
                self.send_header("Content-Length", "0")
                self.end_headers()
            else:
                self._say(HTTPStatus.NOT_FOUND, "text/plain", b"")

        def do_POST(self) -> None:
            key, length = self.headers.get("X-Key", ""), self.headers.get("Content-Length", "")
            status, found = server.answer(self.path, key, length, self.rfile.read)
            self._say(status, "application/json", json.dumps(found).encode())

        def _say(self, status: HTTPStatus, kind: str, body: bytes) -> None:
            with suppress(ConnectionError):  # a page that was closed before it was answered
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.send_header("Cache-Control", "no-store")
                self.send_header("X-Content-Type-Options", "nosniff")
                self.end_headers()
                self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    return Handler
