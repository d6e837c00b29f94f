"""The page itself: `report.html` with its style, script and data in it, and a policy that lets nothing else run or load."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from typing import Any

from qdqtool.page.report_data import PageModel, page_data

#: Where `report.html` takes what is put into it.
HOLES = ("POLICY", "TITLE", "STYLE", "DATA", "SCRIPT")


def report_page(models: Sequence[PageModel]) -> str:
    """HTML: one file that asks for nothing, the same of the same models.

    Args:
        models: side by side, in this order.
    """
    style, script = _file("report.css"), _file("report.js")
    policy = (
        f"default-src 'none'; style-src 'sha256-{_digest(style)}'; script-src 'sha256-{_digest(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    title = ", ".join(model.label for model in models)
    texts = (policy, escape(title), style, embedded(page_data(models)), script)
    page = _file("report.html")
    pieces = [page]
    for hole in HOLES:  # each once, so that no name in a text is taken for one
        before, _, after = pieces.pop().partition(f"@{hole}@")
        pieces += [before, after]
    return "".join(piece + text for piece, text in zip(pieces, [*texts, ""], strict=True))


def embedded(data: Any) -> str:
    """JSON that may stand in a ``<script>``: no ``<``, ``>`` or ``&``, so that no name ends it or opens a comment; ASCII alone.

    Raises:
        ValueError: it holds a NaN or an infinity.
    """
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _file(name: str) -> str:
    return files("qdqtool.page").joinpath(name).read_text(encoding="utf-8").strip()
