"""Open MODEL in Netron, with scales and annotations of Q/DQ as metadata; served on 127.0.0.1 until interrupted."""

from __future__ import annotations

import os
import tempfile

import click

from qdqtool.cli.options import command, load_model, model_argument
from qdqtool.cli.render import Out


@command()
@model_argument
@click.option(
    "--port", type=click.IntRange(0, 65535), default=0, metavar="N", help="Port on loopback; a free one by default."
)
@click.option("--no-browser", is_flag=True, help="Serve only; print the address.")
@click.option("--once", is_flag=True, help="Stop at once after the server is up (for scripts).")
def view(out: Out, model: str, port: int, no_browser: bool, once: bool) -> None:
    """Open MODEL in Netron, with scales and annotations of Q/DQ as metadata; served on 127.0.0.1 until interrupted."""
    import netron

    with tempfile.TemporaryDirectory(prefix="qdqtool-view-") as folder:
        shown = os.path.join(folder, os.path.splitext(os.path.basename(model))[0] + ".onnx")
        _annotated_copy(out, model, shown)
        address = netron.start(
            shown,
            address=("127.0.0.1", port) if port else "127.0.0.1",
            browse=not no_browser and not once,
            verbosity="error",
        )
        url = f"http://{address[0]}:{address[1]}"
        out.result({"url": url, "model": model}, lambda: click.echo(f"{url}  (Ctrl-C stops it)"))
        try:
            if not once:
                netron.wait()
        except KeyboardInterrupt:
            pass
        finally:
            netron.stop()


def _annotated_copy(out: Out, model: str, path: str) -> None:
    """A copy whose dequantized values carry their encoding as an annotation; weights outside the model stay where they are."""
    from qdq_passes.analysis.qdq_pairs import qdq_pairs
    from qdq_passes.core.annotate import ENCODING

    from qdqtool.io.save import save

    graph = load_model(out, model)
    for pair in qdq_pairs(graph):
        if pair.encoding is not None:
            ENCODING.set(pair.dq, pair.encoding)
            if pair.q is not None:
                ENCODING.set(pair.q, pair.encoding)
    save(graph, path, annotations=True)


command = view
