"""What the user of a split must know: where a text run in chunks is not what it is in one run of the dynamic model."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir
from qdq_passes.decoder.look.host_region import Host
from qdq_passes.decoder.look.io import decoder_io
from qdq_passes.decoder.look.positions import first_of_another_length
from qdq_passes.graph.uses import label

#: Operators that quantize all tokens of a run by one scale, made of their values.
TOGETHER = frozenset({"DynamicQuantizeLinear", "DynamicQuantizeMatMul"})


def cautions(model: ir.Model, largest: int) -> Iterator[str]:
    """Sentences on a prepared decoder whose largest context is ``largest``."""
    node = next((node for node in model.graph if node.op_type in TOGETHER), None)
    if node is not None:
        yield (
            f"{label(node)} quantizes all tokens of a run by one scale: logits depend on how a prompt is cut into "
            "chunks, as they do in the dynamic model, and on padding"
        )
    io = decoder_io(model)
    first = None if io.positions is None else first_of_another_length(Host(model, io), io.positions, largest)
    if first is not None:
        yield (
            f"tokens are rotated otherwise in a run that reaches position {first}: a longer prompt in chunks differs from one "
            f"run of the dynamic model, and padding counts; a context of {first} is exact"
        )
