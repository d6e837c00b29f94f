"""Language models as static graphs: the folder that `split` writes, and the session that runs it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qdqtool.llm.run.session import Session

__all__ = ["Session"]


def __getattr__(name: str) -> Any:
    """`Session`, loaded when first used: importing the package is cheap."""
    if name != "Session":
        raise AttributeError(f"module 'qdqtool.llm' has no attribute {name!r}")
    from qdqtool.llm.run.session import Session

    globals()[name] = Session
    return Session
