"""Results as Python shows them: one short line in a shell, a small table in a notebook."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from html import escape
from typing import Any, ClassVar


class Shown:
    """A result with a few figures that stand for it; a dataclass of it says ``repr=False``."""

    #: Name of a figure → where it is: attributes, separated by dots.
    figures: ClassVar[Mapping[str, str]] = {}

    def shown_figures(self) -> dict[str, str]:
        """The figures as text; what is None is left out, of lists and the like the length is given."""
        found = {name: _value(self, path) for name, path in self.figures.items()}
        return {name: _text(value) for name, value in found.items() if value is not None}

    def __repr__(self) -> str:
        """``Analysis(target=vitis_xint8, on_npu=19, operators=19)``."""
        return f"{type(self).__name__}({', '.join(f'{name}={text}' for name, text in self.shown_figures().items())})"

    def _repr_html_(self) -> str:
        """The figures as a table, for notebooks."""
        rows = (
            f"<tr><th>{escape(name)}</th><td>{escape(text)}</td></tr>" for name, text in self.shown_figures().items()
        )
        return f"<table><caption>{type(self).__name__}</caption>{''.join(rows)}</table>"


def _value(result: object, path: str) -> Any:
    return functools.reduce(
        lambda found, name: None if found is None else getattr(found, name), path.split("."), result
    )


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(len(value)) if isinstance(value, list | tuple | dict) else str(value)
