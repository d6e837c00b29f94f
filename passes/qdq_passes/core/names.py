"""The name rule: ``fuse_gelu.py`` = ``fuse-gelu`` = ``FuseGelu``. Text only; imports nothing heavy."""

from __future__ import annotations

import re

from qdq_passes.errors import UsageError

#: Key in ``node.meta`` of a node that has no name in its file: the name it bears in memory was invented at load.
UNNAMED = "qdqtool.unnamed"
#: Key in ``model.meta`` of a model that onnx finds contradictions in when it is loaded: the first, in its words.
CONTRADICTION = "qdqtool.contradiction"


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


#: What tools append to the name of a tensor for its integers: onnxruntime's quantizers (``s1quantized`` for outputs of Split,
#: ``_Q4`` for packed weights), model builders (``.qweight``) and our own.
_STORED = re.compile(r"(?<=.)(_?quantized|_QuantizeLinear_Output|_DynamicQuantizeLinear_Output|_Q\d+(G\d+)?)$")


def float_name(name: str) -> str:
    """Name of the float tensor whose integers are called ``name``: ``w_quantized`` → ``w``, ``w_Q4`` → ``w``."""
    if name.endswith(".qweight"):
        return name.removesuffix("qweight") + "weight"
    return _STORED.sub("", name)
