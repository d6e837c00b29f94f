"""The name rule: ``fuse_gelu.py`` = ``fuse-gelu`` = ``FuseGelu``. Text only; imports nothing heavy."""

from __future__ import annotations

import re

from qdq_passes.errors import UsageError

#: Key in ``node.meta`` of a node that has no name in its file: the name it bears in memory was invented at load.
UNNAMED = "qdqtool.unnamed"


def kebab_case(class_name: str) -> str:
    """``FoldBatchNorm`` → ``fold-batch-norm``, ``RoundScalesPow2`` → ``round-scales-pow2``."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", class_name).lower()


def camel_case(name: str) -> str:
    """``fold-batch-norm`` or ``fold_batch_norm`` → ``FoldBatchNorm``."""
    return "".join(part[:1].upper() + part[1:] for part in re.split(r"[-_]", name))


def split_assignment(text: str) -> tuple[str, str]:
    """``"a=b"`` → ``("a", "b")``; the last ``=`` counts, so that names may contain one.

    Raises:
        UsageError: there is no ``=``, or a side is empty.
    """
    left, equals, right = text.rpartition("=")
    if not equals or not left.strip() or not right.strip():
        raise UsageError(f"{text!r} is no OLD=NEW pair")
    return left.strip(), right.strip()
