"""Open MODEL in Netron, with scales and annotations of Q/DQ as metadata; served on 127.0.0.1 until interrupted."""

from __future__ import annotations

import os
import signal
import tempfile
import urllib.parse
import webbrowser
from contextlib import suppress
from typing import TYPE_CHECKING

from qdq_passes.errors import SetupError, UsageError

from qdqtool.cli.commands import command_of, ran
from qdqtool.cli.render import Out, plural, say
from qdqtool.overlay.asked import View

if TYPE_CHECKING:
    from qdqtool.overlay.editing import Editor


@command_of(View)
def view(out: Out, asked: View) -> None:
    """Open MODEL in Netron, with scales and annotations of Q/DQ as metadata; served on 127.0.0.1 until interrupted."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that the temporary folder goes away
    try:
        if asked.overlay is not None:
            _overlay(out, asked)
        else:
            _netron(out, asked)
    finally:
        signal.signal(signal.SIGTERM, before)


def _netron(out: Out, asked: View) -> None:
    import netron

    from qdqtool.overlay.netron_beside import Netron

    if asked.record is not None:
        raise UsageError("--record needs --overlay", hint="Netron edits nothing; give --overlay type too")
    given = {"--data": asked.data, "--float": asked.float_model, "--target": asked.target, "--chip": asked.chip}
    if alone := [name for name, value in given.items() if value]:
        raise UsageError(f"{alone[0]} needs --overlay", hint="Netron colours nothing; give --overlay METRIC too")
    if len(asked.models) != 1:
        raise UsageError("Netron shows one model", hint="give --overlay changes for several side by side")
    model = os.fspath(asked.models[0])
    with tempfile.TemporaryDirectory(prefix="qdqtool-view-") as folder:
        shown = Netron(model, folder, port=asked.port, browse=asked.browser and not asked.once, warn=out.warn)
        try:
            stop = "" if asked.once else "  (Ctrl-C stops it)"
            out.result({"url": shown.url, "model": model}, lambda: say(f"{shown.url}{stop}"))
            if asked.once:
                _fetch(
                    f"{shown.url}/data/{urllib.parse.quote(os.path.basename(shown.shown))}",
                    os.path.getsize(shown.shown),
                )
            else:
                with suppress(KeyboardInterrupt):
                    netron.wait()
        finally:
            shown.stop()


def _overlay(out: Out, asked: View) -> None:
    from qdqtool.overlay.serving import Server

    overlay = ran(out, asked, "reading")
    try:
        with tempfile.TemporaryDirectory(prefix="qdqtool-view-") as folder:
            server = Server(overlay, folder, asked.port, out.warn)
            try:
                stop = "" if asked.once else "  (Ctrl-C stops it)"
                data = {"url": server.url, "models": [os.fspath(path) for path in asked.models]}
                out.result(data, lambda: say(f"{server.url}{stop}"))
                if asked.once:
                    _fetch(server.url, len(server.page().encode()))
                else:
                    if asked.browser:
                        webbrowser.open(server.url)
                    with suppress(KeyboardInterrupt):
                        server.wait()
            finally:
                server.stop()
                if asked.record is not None:
                    _recorded(out, overlay.editor, os.fspath(asked.record))
    finally:
        overlay.close()


def _recorded(out: Out, editor: Editor, record: str) -> None:
    """Say what was recorded, and what takes it."""
    options = sum(one.is_option for one in editor.edits)
    if edits := len(editor.edits) - options:
        out.note(f"{plural(edits, 'edit')} recorded; the model with them: {editor.replay}")
    if options:
        command = editor.anew or f"qdqtool quantize FLOAT_MODEL --picks {record}, with the options it was made with"
        out.note(f"{plural(options, 'option')} of quantize recorded: {command}")


def _fetch(url: str, size: int) -> None:
    """Fetch what is served, past any proxy of the environment.

    Raises:
        SetupError: it is not served, or is something else.
    """
    from urllib.request import ProxyHandler, build_opener

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
