"""Tables of which rows are chosen by position: how many positions they are for."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from qdq_passes.decoder.look.host_region import Host
from qdq_passes.decoder.look.io import decoder_io
from qdq_passes.decoder.look.positions import shortest_table

from tests.cases.small_decoders import ADDED, LEARNED, decoder

ROTATED = """
  {rotate}
  keys_turned = Transpose <perm = [0, 1, 3, 2]> (present_key) products = MatMul(turned_q, keys_turned) scores = Mul(products, half)
  {mask}
  weights = Softmax <axis = -1> (masked) heads = MatMul(weights, present_value)"""
COSINES = {name: np.ones((20, 2), np.float32) for name in ("cosines", "sines")}


def shortest(model: ir.Model) -> tuple[str | None, int] | None:
    io = decoder_io(model)
    assert io.positions is not None
    found = shortest_table(Host(model, io), io.positions)
    return (found.node.name, found.positions) if found is not None else None


@pytest.mark.parametrize(
    ("positions", "wanted"),
    [
        (LEARNED.replace("embedded_at", "[choose] embedded_at", 1), ("choose", 64)),
        ("behind = Add(position_ids, three) [choose] p = Gather(places, behind) x = Add(words, p)", ("choose", 61)),
        ("same = Mul(position_ids, zero) [choose] p = Gather(places, same) x = Add(words, p)", None),
        ("c = Cast <to = 1> (position_ids) u = Unsqueeze(c, minus_one) x = Add(words, u)", None),
    ],
)
def test_learned_positions(positions: str, wanted: tuple[str, int] | None) -> None:
    """64 rows; with an offset the last rows are reached earlier; rows that do not follow the position have no end."""
    assert shortest(decoder(positions=positions, more={"minus_one": np.array([-1])})) == wanted


@pytest.mark.parametrize(
    ("opset", "rotate"),
    [
        (18, "[rotate] turned_q = com.microsoft.RotaryEmbedding(q, position_ids, cosines, sines)"),
        (23, "[rotate] turned_q = RotaryEmbedding(q, cosines, sines, position_ids)"),
    ],
)
def test_rotary_embedding(opset: int, rotate: str) -> None:
    """20 rows of cosines, fewer than the 64 learned positions."""
    attention = ROTATED.format(rotate=rotate, mask=ADDED)
    assert shortest(decoder(attention=attention, opset=opset, more=COSINES)) == ("rotate", 20)
