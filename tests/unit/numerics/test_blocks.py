"""Weights in blocks: scales and integers against the definition, piece by piece, and the numbers that hold many scales."""

import pickle

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from qdq_passes.errors import ModelError, UsageError
from qdq_passes.numerics import mapped
from qdq_passes.numerics.arrays import MANY, Numbers
from qdq_passes.numerics.blocks import BlockedWeight, BlockRule
from qdq_passes.numerics.encoding import Encoding
from qdq_passes.numerics.quantize import dequantize, quantize

from tests.dial import examples

INT4, INT8 = ir.DataType.INT4, ir.DataType.INT8


def weight(shape, dtype=np.float32, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def blocked(array, axis, size, **rule):
    return BlockedWeight(tensor=ir.tensor(array), axis=axis, rule=BlockRule(dtype=INT4, block_size=size, **rule))


def integers_of(made):
    return np.concatenate([integers for _, integers in made.pieces()]).reshape(made.shape)


@settings(deadline=None, max_examples=examples(60))
@given(
    shape=st.lists(st.integers(1, 9), min_size=1, max_size=3),
    size=st.integers(1, 10),
    fitted=st.booleans(),
    half=st.booleans(),
    data=st.data(),
)
def test_integers_are_those_of_the_encoding(shape, size, fitted, half, data):
    """Whatever shape, axis and block, the pieces are what QuantizeLinear makes of the scales that are stored."""
    axis = data.draw(st.integers(0, len(shape) - 1))
    array = weight(shape, np.float16 if half else np.float32)
    made = blocked(array, axis, size, fitted=fitted, smallest=2.0**-24)
    encoding = made.encoding()
    assert encoding.shape == tuple(-(-d // size) if i == axis else d for i, d in enumerate(shape))
    assert np.array_equal(quantize(array, encoding), integers_of(made))


def test_range_is_the_largest_over_seven():
    array = weight((64, 5))
    found = blocked(array, 0, 16).scales().reshape(4, 5)
    assert np.array_equal(found, np.abs(array.reshape(4, 16, 5)).max(axis=1) / np.float32(7))


@pytest.mark.parametrize("axis", [0, 1])
def test_least_squares_has_less_noise_than_the_range(axis):
    """At 16 integers by about half a dB on normal weights; both are 0 on a grid of their own."""
    array = weight((256, 256))

    def noise(**rule):
        encoding = blocked(array, axis, 32, **rule).encoding()
        return float(np.square(dequantize(quantize(array, encoding), encoding) - array).sum())

    assert noise(fitted=True) < 0.9 * noise()


def test_what_is_zero_has_the_scale_for_it():
    array = np.zeros((4, 2), np.float32)
    array[0, 0] = 1e-30
    assert blocked(array, 0, 2, empty=0.5, smallest=0.25).scales().tolist() == [0.25, 0.5, 0.5, 0.5]


def test_pieces_do_not_change_the_numbers(monkeypatch):
    """A weight that is worked on in many pieces has the integers of one in a single piece."""
    for axis, shape in ((0, (150, 40)), (1, (40, 150)), (1, (3, 70, 20))):
        array = weight(shape)
        whole = integers_of(blocked(array, axis, 32))
        with monkeypatch.context() as context:
            context.setattr(mapped, "PIECE", 1000)
            made = blocked(array, axis, 32)
            assert len(list(made.pieces())) > 3
            assert np.array_equal(integers_of(made), whole)


@pytest.mark.parametrize(("dtype", "size"), [(ir.DataType.UINT4, 32), (INT4, 0)])
def test_what_blocks_cannot_be(dtype, size):
    with pytest.raises(UsageError):
        BlockRule(dtype=dtype, block_size=size)


def test_extremes_and_finite_of_a_file(tmp_path):
    array = weight((700, 400))
    tensor = external(tmp_path, array)
    lows, highs = mapped.extremes(tensor, 1)
    assert np.array_equal(lows, array.min(axis=0, initial=0))
    assert np.array_equal(highs, array.max(axis=0, initial=0))
    assert mapped.is_finite(tensor)
    array[5, 5] = np.nan
    assert not mapped.is_finite(external(tmp_path, array))
    array[5, 5] = np.inf
    assert not mapped.is_finite(external(tmp_path, array))


def test_a_file_that_is_gone_is_named(tmp_path):
    tensor = external(tmp_path, weight((700, 400)))
    (tmp_path / "w.data").unlink()
    with pytest.raises(ModelError, match="cannot be read"):
        mapped.extremes(tensor, 0)


def external(folder, array):
    (folder / "w.data").write_bytes(array.tobytes())
    shape = ir.Shape(array.shape)
    return ir.ExternalTensor("w.data", 0, array.nbytes, ir.DataType.FLOAT, shape=shape, name="w", base_dir=str(folder))


def test_many_numbers_are_an_array_and_equal_a_tuple():
    plain = tuple(float(i) for i in range(MANY))
    encoding = Encoding(dtype=INT8, scale=plain, zero_point=(0,) * MANY, shape=(MANY,), axis=0)
    assert isinstance(encoding.scale, Numbers)
    assert encoding.scale == plain
    assert encoding.scale[3] == 3.0
    assert encoding.scale[1:3] == (1.0, 2.0)
    assert list(encoding.scale)[-1] == MANY - 1
    assert hash(encoding.scale) == hash(plain)
    assert encoding.is_symmetric
    assert Encoding.from_json(encoding.to_json()) == encoding
    assert pickle.loads(pickle.dumps(encoding)) == encoding
    assert encoding != Encoding(dtype=INT8, scale=(1.0, *plain[1:]), zero_point=(0,) * MANY, shape=(MANY,), axis=0)


def test_positions_of_many_numbers():
    scale = tuple(2.0 ** -(i % 5) for i in range(MANY))
    encoding = Encoding(dtype=INT8, scale=scale, zero_point=(0,) * MANY, shape=(MANY,), axis=0)
    assert encoding.position == tuple(i % 5 for i in range(MANY))
    odd = Encoding(dtype=INT8, scale=(3.0, *scale[1:]), zero_point=(0,) * MANY, shape=(MANY,), axis=0)
    assert odd.position is None


def test_same_numbers():
    zeros = Numbers.same(5, 0)
    assert zeros == (0,) * 5
    assert zeros.is_all(0)
    assert not Numbers.of(np.array([0, 1])).is_all(0)
