"""Sessions that give values inside the model in onnxruntime's layout of blocked channels (NCHWc), in which it convolves.

To give such a value in the model's own layout, onnxruntime reorders it, which takes 40 % of a run of MobileNetV2 with all
activations. A histogram does not depend on the order of values. So onnxruntime writes the optimized model, the reorderings of
these outputs are removed, and the session is made of the result, which computes the same numbers.

onnxruntime pads channels to a multiple of 8 or 16, so an output whose channels are no multiple of 16 keeps its reordering."""

from __future__ import annotations

import functools
import math
import os
import re
import tempfile
from collections.abc import Callable, Iterable
from typing import Any

import onnx
import onnx_ir as ir
from qdq_passes.errors import VerifyError
from qdq_passes.graph.uses import integer_of, is_standard
from qdq_passes.pipeline.hooks import VERIFY_EACH

from qdqtool.io.files.progress import Warn
from qdqtool.io.files.read import read_bytes
from qdqtool.io.models.save import to_bytes
from qdqtool.runtime.refusals import one_line

#: Multiple of the channels in a block of any processor.
BLOCK = 16
#: Bytes of weights from which it does not pay: they are written once more.
MOST_WEIGHTS = 1 << 28
#: Elements of a sample from which it pays: less is reordered sooner than a second session is opened.
LEAST_VALUES = 1 << 20
#: Bytes of a weight that is written beside the optimized model.
SMALL = 1 << 10
_REORDER = ("com.microsoft.nchwc", "ReorderOutput")


def pays(graph: ir.Graph, names: Iterable[str]) -> bool:
    """Whether ``graph`` convolves, has much to reorder in its values ``names``, and few enough weights to be written once more;
    on a system where an open file can be deleted."""
    if os.name != "posix" or not any(is_standard(node, "Conv") for node in graph):
        return False
    wanted = set(names)
    shapes = [v.shape for node in graph for v in node.outputs if v.name in wanted]
    weights = (value.const_value for value in graph.initializers.values())
    return (
        sum(math.prod(shape.numpy()) for shape in shapes if shape is not None and shape.is_static()) >= LEAST_VALUES
        and sum(tensor.nbytes for tensor in weights if tensor is not None) < MOST_WEIGHTS
    )


def blocked(make: Callable[[], Any], options: Any, plain: Callable[[str], Any], names: set[str], say: Warn) -> Any:
    """Return a session whose outputs ``names`` may hold their elements in any order.

    Args:
        make: makes the session of ``options``.
        options: options with optimization.
        plain: makes options without, for external data in a folder.
        names: outputs of the model.
        say: told why they are in order: onnxruntime cannot write the optimized model or refuses what it wrote, or we have a bug.

    Raises:
        VerifyError: the rewriting fails, or onnxruntime refuses its result alone, where `VERIFY_EACH` asks for such errors.
    """
    try:
        with tempfile.TemporaryDirectory(prefix="qdqtool-", ignore_cleanup_errors=True) as folder:
            return _made(make, options, plain, names, folder)
    except (OSError, _Refused, VerifyError) as error:
        if isinstance(error, VerifyError) and os.environ.get(VERIFY_EACH):
            raise
        options.optimized_model_filepath = ""
        made = make()  # another fault of the model is refused here too
        reason = re.sub(r"\bqdqtool-\w+", "qdqtool", one_line(str(error)))  # the same in every run
        say(f"onnxruntime gives values in the model's own layout, which takes longer: {reason}")
        return made


class _Refused(Exception):
    """A refusal of onnxruntime."""


def _made(make: Callable[[], Any], options: Any, plain: Callable[[str], Any], names: set[str], folder: str) -> Any:
    options.optimized_model_filepath = path = os.path.join(folder, "optimized.onnx")
    options.add_session_config_entry("session.optimized_model_external_initializers_file_name", "weights.data")
    options.add_session_config_entry("session.optimized_model_external_initializers_min_size_in_bytes", str(SMALL))
    first = _accepted(make)
    written = read_bytes(path)
    try:
        model = ir.serde.deserialize_model(onnx.load_model_from_string(written))
        if not _without_reordering(model.graph, names):
            return first
        data = to_bytes(ir.serde.serialize_model(model))
    except Exception as error:
        raise VerifyError(f"cannot remove the reordering of values: {error}") from error
    kind: Any = type(first)
    session = functools.partial(kind, providers=["CPUExecutionProvider"])
    del first
    try:
        return _accepted(lambda: session(data, plain(folder)))
    except _Refused as error:
        _accepted(lambda: session(written, plain(folder)))  # refused as well: not for the rewriting
        raise VerifyError(f"onnxruntime refuses a model without reordering: {error}") from error


def _accepted(make: Callable[[], Any]) -> Any:
    try:
        return make()
    except Exception as error:
        raise _Refused(str(error)) from error


def _without_reordering(graph: ir.Graph, names: set[str]) -> int:
    """Make outputs ``names`` of ``graph`` the blocked values that they are reordered from; how many were."""
    count = 0
    for index, output in enumerate(graph.outputs):
        node, name = output.producer(), output.name
        if node is None or (node.domain, node.op_type) != _REORDER or name not in names or output.uses():
            continue
        blocks = node.inputs[0]
        if blocks is None or blocks.is_graph_output() or integer_of(node, "channels", 1) % BLOCK:
            continue
        graph.outputs[index] = blocks
        graph.remove(node, safe=True)
        blocks.name, blocks.shape, blocks.type = name, output.shape, output.type
        count += 1
    return count
