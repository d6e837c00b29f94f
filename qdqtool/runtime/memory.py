"""A bound on the memory of a session: what its nodes ask for beyond it fails, by name, before it is had.

onnxruntime's allocators have a bound where they are registered with its environment. A session takes the one that is registered
while it is made, and keeps it to its end; the next registration leaves it as it is (measured with 1.23.2 and 1.32.0). It grows as
a session's own allocator does: that costs nothing."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import onnx_ir as ir
from qdq_passes.core import budget
from qdq_passes.errors import ModelError
from qdq_passes.graph.uses import all_nodes, bodies_of, constant_array, input_at, is_constant, is_standard, label

#: Session option: take allocators of the environment.
ENTRY = ("session.use_env_allocators", "1")
#: Bytes that any session may have: half of what is allowed, as outputs are copied.
LEAST = budget.LEAST // 2
#: What a trip of a loop is counted as.
A_TRIP = 1 << 10
#: What onnxruntime says of a node that asks for more.
_EXCEEDED = re.compile(r"Available memory of \d+ is smaller than requested bytes of (\d+)")
_lock = threading.Lock()


class MemoryRefusal(ModelError):
    """A node asks for more memory than its session may have."""


def least(size: int) -> int:
    """Bytes that a session of a model of ``size`` bytes may have, whatever the user brought."""
    return LEAST + 8 * size


@contextmanager
def limited(ort: Any, size: int, tensors: int) -> Iterator[int]:
    """Give the session that is made in the body, of a model of ``size`` bytes and with so many ``tensors`` to be had, a bound, in
    bytes."""
    with _lock:  # another one must not register between
        most = budget.allowed(least(size), tensors)
        device = ort.OrtMemoryInfo("Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT)
        ort.create_and_register_allocator(device, ort.OrtArenaCfg({"max_mem": most, "arena_extend_strategy": 0}))
        yield most


def exceeded(text: str, node: str | None, operator: str) -> MemoryRefusal | None:
    """The error for a node that asks for more than its session may have, given onnxruntime's message; None for another."""
    found = _EXCEEDED.search(text)
    if found is None:
        return None
    wanted, most = int(found[1]), budget.allowed(LEAST)
    return MemoryRefusal(
        f"{operator} asks for {budget.size(wanted)} beside what is held: more than the {budget.size(most)} allowed",
        where=node,
        hint=budget.way_out(wanted),
    )


def refuse_endless(model: ir.Model) -> None:
    """Refuse a Loop that would run its body a million times and more, where its condition cannot end it: it is that of the trip
    before. An exporter's 2^62 trips with another condition are a while.

    Raises:
        ModelError: there is one.
    """
    for node in all_nodes(model):
        trips = constant_array(input_at(node, 0)) if is_standard(node, "Loop") else None
        if trips is not None and trips.size == 1 and trips.dtype == np.int64 and bodies_of(node)[0].outputs:
            body = bodies_of(node)[0]
            ends = body.outputs[0]
            while (producer := ends.producer()) is not None and is_standard(producer, "Identity"):
                if producer.inputs[0] is None:
                    break
                ends = producer.inputs[0]
            if is_constant(ends) or ends in body.inputs:
                hint = "give it fewer trips, or a condition that ends it"
                budget.demand(int(trips.item()) * A_TRIP, f"{int(trips.item()):,} trips", where=label(node), hint=hint)
