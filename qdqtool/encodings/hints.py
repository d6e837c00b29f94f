"""Hints: what a QDQ model has that no format of encodings can say, kept beside the entries under the key ``qdqtool``.

Names of nodes and parameters, integers or float weight, one pair or several, which reader reads which. Other readers ignore the
key; without it the encodings are the same and the pairs get names and style by default. Only what differs from the default is
written::

    {"weights": "dq", "tensors": {"w": {"dtype": "int8", "axis": -1, "ranks": [1, 1], "stored": "w_q", "input": "…",
      "integers": [[flat index, integer], …],
      "pairs": [{"q": {"name", "output", "scale", "zero_point", "domain", "attributes"}, "dq": {…},
                 "readers": [[first output of the reading node, input index], …], "on": "…", "output": true}, …]}}}"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.errors import ModelError

from qdqtool.encodings.entries import Json

#: (name of the first output of the node that reads, index of its input)
Reader = tuple[str, int]
Weights = Literal["qdq", "dq"]


@dataclass(frozen=True, kw_only=True)
class NodeHint:
    """A QuantizeLinear or DequantizeLinear.

    Args:
        name: its name.
        output: name of its output.
        scale: name of its scale.
        zero_point: name of its zero point, None where it has none.
        domain: its domain.
        attributes: its integer attributes, None where they are those that the encoding needs.
    """

    name: str
    output: str
    scale: str
    zero_point: str | None
    domain: str = ""
    attributes: tuple[tuple[str, int], ...] | None = None


@dataclass(frozen=True, kw_only=True)
class PairHint:
    """A pair on a tensor, or half of one.

    Args:
        q: the QuantizeLinear; None where integers are stored, or are a graph input. Pairs with one name share it.
        dq: the DequantizeLinear; None where the integers are a graph output.
        readers: who reads the dequantized value; None for everybody that no other pair names.
        on: name of the DequantizeLinear whose output it quantizes once more; empty: it stands on the tensor itself.
        output: whether its dequantized value (its integers, without ``dq``) is the graph output of the tensor's name.
    """

    q: NodeHint | None
    dq: NodeHint | None
    readers: tuple[Reader, ...] | None = None
    on: str = ""
    output: bool = False


@dataclass(frozen=True, kw_only=True)
class TensorHint:
    """What is special about the pairs of one tensor.

    Args:
        pairs: its pairs, in the order of the file.
        dtype: storage type, where the format forgets its sign.
        axis: axis, where the format forgets it.
        ranks: rank of a per-tensor scale and zero point, 0 or 1 each.
        stored: name of the stored integers, None where there are none.
        integers: (flat index, integer) of those that requantizing the float values does not give back.
        source: name of the float value behind a graph output that a DequantizeLinear writes.
    """

    pairs: tuple[PairHint, ...]
    dtype: str | None = None
    axis: int | None = None
    ranks: tuple[int, int] = (0, 0)
    stored: str | None = None
    integers: tuple[tuple[int, int], ...] = ()
    source: str = ""


def default_hint(tensor: str, *, stored: bool, is_output: bool) -> TensorHint:
    """The pair that `insert-qdq` makes on ``tensor``."""

    def node(word: str, output: str) -> NodeHint:
        return NodeHint(
            name=f"{tensor}_{word}", output=output, scale=f"{tensor}_scale", zero_point=f"{tensor}_zero_point"
        )

    dequantized = tensor if is_output else f"{tensor}_DequantizeLinear_Output"
    pair = PairHint(
        q=None if stored else node("QuantizeLinear", f"{tensor}_QuantizeLinear_Output"),
        dq=node("DequantizeLinear", dequantized),
        output=is_output,
    )
    return TensorHint(
        pairs=(pair,),
        stored=f"{tensor}_quantized" if stored else None,
        source=f"{tensor}_QuantizeLinear_Input" if is_output else "",
    )


#: The hint that says nothing, for stored integers or not.
Default = Callable[[bool], TensorHint]


def to_json(hint: TensorHint, default: Default, *, is_stored: bool) -> dict[str, Json]:
    """``hint`` as JSON, as far as it differs from ``default``; ``is_stored`` is what readers take for granted."""
    own = default(hint.stored is not None)
    data: dict[str, Json] = {
        key: getattr(hint, key)
        for key in ("dtype", "axis", "ranks", "integers", "source")
        if getattr(hint, key) != getattr(own, key)
    }
    if hint.stored != own.stored or (hint.stored is not None) != is_stored:
        data["stored"] = hint.stored if hint.stored is not None else False
    if hint.pairs != own.pairs:
        data["pairs"] = [_pair_to_json(pair, own.pairs[0]) for pair in hint.pairs]
    return data


def _pair_to_json(pair: PairHint, default: PairHint) -> dict[str, Json]:
    data: dict[str, Json] = {}
    for key in ("q", "dq"):
        mine: NodeHint | None = getattr(pair, key)
        theirs: NodeHint | None = getattr(default, key)
        if mine != theirs:
            data[key] = None if mine is None else _node_to_json(mine, theirs)
    if pair.readers is not None:
        data["readers"] = pair.readers
    if pair.on:
        data["on"] = pair.on
    if pair.output != default.output:
        data["output"] = pair.output
    return data


def _node_to_json(node: NodeHint, default: NodeHint | None) -> dict[str, Json]:
    data: dict[str, Json] = {}
    for field in dataclasses.fields(NodeHint):
        value = getattr(node, field.name)
        if default is None or value != getattr(default, field.name):
            data[field.name] = dict(value) if field.name == "attributes" and value is not None else value
    return data


def from_json(name: str, data: Json, default: Default, *, is_stored: bool) -> TensorHint:
    """The hint of tensor ``name``; inverse of `to_json`.

    Raises:
        ModelError: it is malformed.
    """
    try:
        fields = _object(data)
        return _from_json(fields, default(fields["stored"] is not False if "stored" in fields else is_stored))
    except (KeyError, TypeError, ValueError) as error:
        raise ModelError(
            f"its hint under 'qdqtool' is malformed ({type(error).__name__})",
            where=name,
            hint="take it out, or read the file with --no-hints",
        ) from error


def _from_json(data: Mapping[str, Json], default: TensorHint) -> TensorHint:
    changes: dict[str, object] = {}
    if "dtype" in data:
        changes["dtype"] = str(data["dtype"])
    if "axis" in data:
        changes["axis"] = _integer(data["axis"])
    if "ranks" in data:
        scale, zero_point = _list(data["ranks"])
        changes["ranks"] = (_integer(scale), _integer(zero_point))
    if "stored" in data:
        changes["stored"] = None if data["stored"] is False else _text(data["stored"])
    if "integers" in data:
        rows = [_list(row) for row in _list(data["integers"])]
        changes["integers"] = tuple((_integer(index), _integer(value)) for index, value in rows)
    if "source" in data:
        changes["source"] = _text(data["source"])
    if "pairs" in data:
        changes["pairs"] = tuple(_pair_from_json(pair, default.pairs[0]) for pair in _list(data["pairs"]))
    return dataclasses.replace(default, **changes)  # type: ignore[arg-type]


def _pair_from_json(item: Json, default: PairHint) -> PairHint:
    data, changes = _object(item), dict[str, object]()
    for key in ("q", "dq"):
        if key in data:
            part = data[key]
            changes[key] = None if part is None else _node_from_json(part, getattr(default, key))
    if "readers" in data:
        rows = [_list(row) for row in _list(data["readers"])]
        changes["readers"] = tuple((_text(tensor), _integer(index)) for tensor, index in rows)
    if "on" in data:
        changes["on"] = _text(data["on"])
    if "output" in data:
        changes["output"] = data["output"] is True
    return dataclasses.replace(default, **changes)  # type: ignore[arg-type]


def _node_from_json(item: Json, default: NodeHint | None) -> NodeHint:
    data = _object(item)
    texts = {key: _text(data[key]) for key in ("name", "output", "scale", "domain") if key in data}
    changes: dict[str, object] = dict(texts)
    if "zero_point" in data:
        changes["zero_point"] = None if data["zero_point"] is None else _text(data["zero_point"])
    if data.get("attributes") is not None:
        attributes = _object(data["attributes"])
        changes["attributes"] = tuple(sorted((key, _integer(value)) for key, value in attributes.items()))
    if default is None:
        return NodeHint(**changes)  # type: ignore[arg-type]
    return dataclasses.replace(default, **changes)  # type: ignore[arg-type]


def _text(value: Json) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _integer(value: Json) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError
    return value


def _list(value: Json) -> Sequence[Json]:
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise TypeError
    return value


def _object(value: Json) -> Mapping[str, Json]:
    if not isinstance(value, Mapping):
        raise TypeError
    return value
