"""A record as large as that of a real network, of numbers that a seed gives; its names are such that a careless page would break."""

from __future__ import annotations

import numpy as np

from qdqtool.page.report_data import Advice, Edit, PageModel
from qdqtool.record.record import Histogram, Moved, NodeRecord, Record, TensorRecord, Whole

#: Names that must stay text.
WICKED = "/x</script><script>document.title='broken'</script><img src=x onerror=alert(1)>&amp;\"'"


def large_record(*, nodes: int = 1000, tensors: int = 1500, seed: int = 0) -> Record:
    """A chain of ``nodes`` with ``tensors`` quantized tensors, weights along 256 channels, with times and verdicts."""
    random = np.random.default_rng(seed)
    names = [f"/model/layers.{at // 20}/block.{at // 5}/conv.{at}" for at in range(nodes)]
    names[1] = WICKED
    found = []
    for at in range(tensors):
        node, is_weight = names[at % nodes], at >= nodes
        scale = [float(s) for s in 2.0 ** random.integers(-9, -3, 256 if is_weight else 1)]
        encoding = {"dtype": "int8", "scale": scale, "zero_point": [0] * len(scale), "axis": 0 if is_weight else None}
        values = random.normal(0, float(random.uniform(0.1, 4)), 4000)
        counts, edges = np.histogram(values, 64)
        moves = (
            Moved(by="annotate-encodings", after=encoding),
            Moved(by="refine-positions", because="position 5 → 4 (align-add)", before=encoding, after=encoding),
        )
        cause = "weight" if is_weight else "clipping" if at % 7 == 0 else "rounding"
        found.append(
            TensorRecord(
                name=f"{node}_weight" if is_weight else f"{node}_output_0", kind="weight" if is_weight else "activation",
                node=node, encoding=encoding, low=float(edges[0]), high=float(edges[-1]),
                histogram=Histogram(low=float(edges[0]), high=float(edges[-1]), counts=tuple(map(int, counts))),
                moved=moves, clipped=float(random.uniform(0, 0.01)), sqnr_db=float(random.uniform(20, 50)),
                price={cause: float(random.exponential(1e-6)), "bias": 1e-9},
            )
        )  # fmt: skip
    listed = tuple(
        NodeRecord(
            name=name, op=("Conv", "Add", "Mul", "Relu")[at % 4], tensors=(f"{name}_output_0",), here_db=30.0 + at % 9,
            whole_db=25.0 + at % 5, verdict="fallback" if at % 11 == 0 else "npu-int", device="CPU" if at % 11 == 0 else "HTP",
            reason="scale is no power of two" if at % 11 == 0 else "", us=1.5 + at % 13, low_us=1.0, high_us=20.0, bytes=1000 * at,
        )
        for at, name in enumerate(names)
    )  # fmt: skip
    total = sum(sum(one.price.values()) for one in found)
    whole = Whole(file_bytes=25_000_000, target="vitis_xint8", operators=nodes, npu_operators=nodes - nodes // 11, macs=10**9,
        npu_macs=9 * 10**8, chip="Snapdragon 8 Elite", stack="qnn_dlc", us=1500.0, low_us=1200.0, high_us=2000.0)  # fmt: skip
    return Record(
        tensors=tuple(found), nodes=listed, noise={"logits": total}, samples=8, model="large.onnx", whole=whole
    )


def page_model(record: Record, label: str) -> PageModel:
    """It on a page, with one thing to try."""
    first = max(record.tensors, key=lambda one: sum(one.price.values()))
    edits = (Edit(kind="set", command="qdqtool qdq set a.onnx -o b.onnx", wins_db=0.5),)
    advice = Advice(name=first.name, kind="tensor", cause="shared", why="why", share=0.1, edits=edits)
    return PageModel(label=label, record=record, advice=(advice,))
