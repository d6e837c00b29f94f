"""The pass library under the name of this package: ``from qdqtool.passes import Pass, Pipeline``."""

from __future__ import annotations

from qdq_passes import *  # noqa: F403
from qdq_passes import __all__ as __all__
