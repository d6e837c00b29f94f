"""The name rule: ``fuse_gelu.py`` = ``fuse-gelu`` = ``FuseGelu``. Text only; imports nothing heavy."""

from __future__ import annotations

import re
from collections.abc import Mapping

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


#: A dimension computed from others, as exporters write it: ``past + length``, ``2*s0``, ``s0//2``. A minus needs spaces, because
#: names such as ``batch-size`` exist.
_TERM = r"(?:[A-Za-z_][\w.]*|\d+)"
_EXPRESSION = re.compile(rf"{_TERM}(?:\s*(?:\+|\*|//)\s*{_TERM}|\s+-\s+{_TERM})*")
_OPERATORS = {"*": int.__mul__, "//": int.__floordiv__, "+": int.__add__, "-": int.__sub__}


def substitute_dim(text: str, new: Mapping[str, int | str]) -> int | str:
    """A symbolic dimension with names replaced; a number when nothing symbolic is left.

    >>> substitute_dim("past + length", {"past": 4}), substitute_dim("past + length", {"past": 4, "length": 8})
    ('4 + length', 12)
    """
    if text in new:
        return new[text]
    if not _EXPRESSION.fullmatch(text):
        return text
    replaced = re.sub(_TERM, lambda match: str(new.get(match[0], match[0])), text)
    parts: list[int | str] = [int(p) if p.isdigit() else p for p in re.findall(rf"{_TERM}|\+|-|\*|//", replaced)]
    if not all(isinstance(term, int) for term in parts[::2]):
        return replaced
    for level in (("*", "//"), ("+", "-")):
        at = 1
        while at < len(parts):
            left, operator, right = parts[at - 1], parts[at], parts[at + 1]
            if operator in level and isinstance(left, int) and isinstance(right, int) and (right or operator != "//"):
                parts[at - 1 : at + 2] = [_OPERATORS[str(operator)](left, right)]
            else:
                at += 2
    return parts[0] if len(parts) == 1 and isinstance(parts[0], int) and parts[0] >= 0 else replaced


#: What tools append to the name of a tensor for its integers: onnxruntime's quantizers (``s1quantized`` for outputs of Split,
#: ``_Q4`` for packed weights), model builders (``.qweight``) and our own.
_STORED = re.compile(r"(?<=.)(_?quantized|_QuantizeLinear_Output|_DynamicQuantizeLinear_Output|_Q\d+(G\d+)?)$")


def float_name(name: str) -> str:
    """Name of the float tensor whose integers are called ``name``: ``w_quantized`` → ``w``, ``w_Q4`` → ``w``."""
    if name.endswith(".qweight"):
        return name.removesuffix("qweight") + "weight"
    return _STORED.sub("", name)
