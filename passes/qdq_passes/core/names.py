"""The name rule: ``fuse_gelu.py`` = ``fuse-gelu`` = ``FuseGelu``. Text only; imports nothing heavy."""

from __future__ import annotations

import re

#: Key in ``node.meta`` of a node that has no name in its file: the name it bears in memory was invented at load.
UNNAMED = "qdqtool.unnamed"


def kebab_case(class_name: str) -> str:
    """``FoldBatchNorm`` → ``fold-batch-norm``, ``RoundScalesPow2`` → ``round-scales-pow2``."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", class_name).lower()


def camel_case(name: str) -> str:
    """``fold-batch-norm`` or ``fold_batch_norm`` → ``FoldBatchNorm``."""
    return "".join(part[:1].upper() + part[1:] for part in re.split(r"[-_]", name))
