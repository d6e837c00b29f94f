"""What `view` is asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, ClassVar, Literal

from qdq_passes._lazy_dataclass import dataclass

from qdqtool.options import metadata_of, option
from qdqtool.verbs.groups import DATA, OnChip, Path, Reports, Samples, Threaded, Tokenized
from qdqtool.verbs.story.report import Judged
from qdqtool.verbs.verb import Verb

if TYPE_CHECKING:
    from qdqtool.io.feeds.feeds import FeedSpec
    from qdqtool.overlay.models import Overlay

#: What nodes and pairs can have the colour of.
Metric = Literal["type", "price", "sqnr", "clipped", "here", "whole", "verdict", "time", "bytes", "changes"]
#: Options that a metric needs.
NEEDED: Mapping[str, str] = {
    "price": "data", "sqnr": "data", "clipped": "data", "here": "data", "whole": "data", "verdict": "target", "time": "chip",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class View(Judged, OnChip, Samples, Tokenized, Threaded, Reports, Verb["Overlay"]):
    """Open MODEL in Netron, with scales and annotations of Q/DQ as metadata; served on 127.0.0.1 until interrupted.

    --overlay serves a page of ours beside it: the graph in the colours of a metric, two or three models side by side, and a click
    makes the same edit as a qdq command, recorded by --record.
    """

    examples: ClassVar = (
        "view int8.onnx",
        "view int8.onnx --overlay price --float model.onnx --data calib.npz --record edits.toml",
        "view a.onnx b.onnx --overlay changes",
    )

    models: Sequence[Path] = field(
        kw_only=False,
        metadata=metadata_of("Models; several with --overlay.", kind="argument", value="MODEL...", use="read"),
    )
    overlay: Metric | None = option(
        None, "Serve a page of ours too, with the graph in the colours of this metric, where clicks are edits."
    )
    data: FeedSpec | None = field(default=None, metadata=DATA)
    record: Path | None = option(
        None, "Append edits of the first MODEL to this TOML script, which `opt -p @FILE` replays to the same bytes.",
        value="FILE", use="kept",
    )  # fmt: skip
    port: int = option(0, "Port on loopback; a free one by default.", value="N", least=0, most=65535)
    browser: bool = option(True, "Serve only; print the address.", flags=("--no-browser",))
    once: bool = option(False, "Fetch the page once, to see that it is served, and stop (for scripts).")

    def run(self) -> Overlay:
        """What the page holds; nothing is served yet.

        Raises:
            UsageError: no overlay, too many models, or a metric that needs more than is given.
        """
        from qdqtool.overlay.models import Overlay

        return Overlay(self)
