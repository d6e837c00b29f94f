"""Pages: HTML with its style, scripts and data in it, and a policy that lets nothing else run or load."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from typing import Any

from qdqtool.page.report_data import PageModel, page_data

#: Where a page takes what is put into it.
HOLES = ("POLICY", "TITLE", "STYLE", "DATA", "SCRIPT")


def report_page(models: Sequence[PageModel]) -> str:
    """HTML: one file that asks for nothing, the same of the same models.

    Args:
        models: side by side, in this order.
    """
    title = ", ".join(model.label for model in models)
    style, script = page_file("qdqtool.page", "report.css"), script_of("tables.js", "strip.js", "report.js")
    page = page_file("qdqtool.page", "report.html")
    return filled(page, policy_of(style, script), title=title, style=style, data=page_data(models), script=script)


def policy_of(style: str, script: str, connect: str = "") -> str:
    """The content security policy of a page: it runs and loads nothing but ``style`` and ``script``.

    Args:
        style: CSS.
        script: the script.
        connect: whom the script may ask, as a source of the policy; "" for nobody.
    """
    return (
        f"default-src 'none'; style-src 'sha256-{_digest(style)}'; script-src 'sha256-{_digest(script)}'; "
        f"{connect and f'connect-src {connect}; '}base-uri 'none'; form-action 'none'"
    )


def filled(page: str, policy: str, *, title: str, style: str, data: Any, script: str) -> str:
    """``page`` with all that it needs in it.

    Args:
        page: HTML with each of `HOLES` once, in this order.
        policy: `policy_of` its style and script.
        title: of the window.
        style: CSS.
        data: JSON-ready, for the script.
        script: the script.
    """
    texts = (policy, escape(title), style, embedded(data), script)
    pieces = [page]
    for hole in HOLES:  # each once, so that no name in a text is taken for one
        before, _, after = pieces.pop().partition(f"@{hole}@")
        pieces += [before, after]
    return "".join(piece + text for piece, text in zip(pieces, [*texts, ""], strict=True))


def script_of(*names: str, package: str = "qdqtool.page") -> str:
    """The scripts ``names`` of ``package`` in one, behind the parts that all pages have."""
    return "\n".join([page_file("qdqtool.page", "parts.js"), *(page_file(package, name) for name in names)])


def page_file(package: str, name: str) -> str:
    """Text of a file that comes with ``package``."""
    return files(package).joinpath(name).read_text(encoding="utf-8").strip()


def embedded(data: Any) -> str:
    """JSON that may stand in a ``<script>``: no ``<``, ``>`` or ``&``, so that no name ends it or opens a comment; ASCII alone.

    Raises:
        ValueError: it holds a NaN or an infinity.
    """
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
