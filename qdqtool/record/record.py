"""`Record`: of each tensor its range, encoding and what moved it, of each node its noise and where it runs; what causes cost.

Verbs fill in what they know, and `merged` puts that together: what a later record knows comes before what an earlier one did."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import Annotated, Any, Literal, TypeVar, get_args

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.errors import ModelError, QdqError
from qdq_passes.numerics.documents import typed
from qdq_passes.numerics.encoding import Encoding

from qdqtool.io.files.artifacts import read_document

#: Of the JSON form; another number where a field changes its meaning or goes.
VERSION = 1
#: What noise is of: rounding and clipping of an activation by its pair; both by a pair at a boundary, where integers are written
#: and floats alone are read; of weights and of a bias; what a node computes otherwise; what these do together.
Cause = Literal["rounding", "clipping", "boundary", "weight", "bias", "operator", "together"]
CAUSES: tuple[Cause, ...] = get_args(Cause)
#: Cause → noise at the outputs over the signal there, summed over outputs.
Price = Mapping[str, float]
#: What `Encoding.to_json` writes; the mark tells the schema.
EncodingJson = Annotated[Mapping[str, Any], Encoding]


@dataclass(frozen=True, kw_only=True)
class Histogram:
    """How often values lie where.

    Args:
        low: left end of the first bin, in the tensor's unit.
        high: right end of the last.
        counts: in bins of one width.
    """

    low: float
    high: float
    counts: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Moved:
    """A pass that chose an encoding, or changed it.

    Args:
        by: the pass.
        because: its rule, in words.
        before: the encoding as JSON; None where there was none, or one of very many scales.
        after: likewise.
    """

    by: str
    because: str = ""
    before: EncodingJson | None = None
    after: EncodingJson | None = None


@dataclass(frozen=True, kw_only=True)
class TensorRecord:
    """What is known of one tensor that is quantized, or would be but for a reason; None and empty of what is not known.

    Args:
        name: of the float value.
        kind: ``activation``, ``weight`` or ``bias``.
        node: that writes the activation, or reads the constant.
        encoding: as JSON, see `Encoding.to_json`; None also where `quantize` or `compare` meet very many scales (2^14).
        low: smallest value seen, in the tensor's unit.
        high: largest.
        histogram: of the values.
        moved: who chose the encoding, then who changed it, in order.
        clipped: share of values beyond the grid, 0..1.
        sqnr_db: of the tensor alone, dB; None also where it is exact.
        here_db: SQNR of what its readers read when the node that writes it has the float model's inputs, dB; None also where that
            is exact.
        whole_db: the same with the noise that came in, dB.
        price: at the outputs, by cause.
        excluded: why it stays float though a node that is quantized writes or reads it.
        kept: why it is quantized though a node that is excluded writes or reads it.
    """

    name: str
    kind: str
    node: str = ""
    encoding: EncodingJson | None = None
    low: float | None = None
    high: float | None = None
    histogram: Histogram | None = None
    moved: tuple[Moved, ...] = ()
    clipped: float | None = None
    sqnr_db: float | None = None
    here_db: float | None = None
    whole_db: float | None = None
    price: Price = field(default_factory=dict)
    excluded: str = ""
    kept: str = ""


@dataclass(frozen=True, kw_only=True)
class NodeRecord:
    """What is known of one node, or of one fused group by its first; None and empty of what is not.

    Args:
        name: of the node.
        op: its operator.
        tensors: that it writes.
        here_db: SQNR of what it writes, not yet rounded, with the noise that it adds itself, dB; None also where it is exact.
        whole_db: the same with the noise that came in, dB.
        price: at the outputs, of what is no tensor's: by cause.
        excluded: why nothing of it is quantized, though its operator may be.
        verdict: of a target: ``npu-int``, ``npu-float``, ``fallback``, ``refused``.
        rule: by which.
        reason: why, in words.
        suggestion: what would bring it onto the NPU, commands in backticks.
        device: engine or ``CPU``.
        partition: number of what the NPU is handed it with.
        us: microseconds of one run.
        low_us: end of the 80 % interval where a chip is named.
        high_us: likewise.
        limit: what its time goes into: ``MAC``, ``memory``, …
        bytes: that it reads and writes in one run, as they are stored.
    """

    name: str
    op: str = ""
    tensors: tuple[str, ...] = ()
    here_db: float | None = None
    whole_db: float | None = None
    price: Price = field(default_factory=dict)
    excluded: str = ""
    verdict: str = ""
    rule: str = ""
    reason: str = ""
    suggestion: str = ""
    device: str = ""
    partition: int | None = None
    us: float | None = None
    low_us: float | None = None
    high_us: float | None = None
    limit: str = ""
    bytes: int | None = None

    @property
    def why(self) -> str:
        """Reason and suggestion in one line."""
        return f"{self.reason}; {self.suggestion}" if self.suggestion else self.reason or "-"


@dataclass(frozen=True, kw_only=True)
class Whole:
    """What is known of a model as a whole; None and empty of what is not.

    Args:
        file_bytes: of the file and of those with its weights.
        target: the NPU that it was judged for.
        operators: nodes that compute or move data.
        npu_operators: those of them on the NPU.
        macs: multiply-accumulates of one run.
        npu_macs: those of them on the NPU.
        chip: of which the time is.
        stack: runtime on the chip.
        us: microseconds of one run.
        low_us: end of the 80 % interval.
        high_us: likewise.
        notes: what the time leaves out, in words.
    """

    file_bytes: int | None = None
    target: str = ""
    operators: int | None = None
    npu_operators: int | None = None
    macs: int | None = None
    npu_macs: int | None = None
    chip: str = ""
    stack: str = ""
    us: float | None = None
    low_us: float | None = None
    high_us: float | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Record:
    """What is known of a model.

    Args:
        tensors: in the order of the graph.
        nodes: in the order of the graph.
        noise: at the outputs, over the signal there, by output.
        samples: that were run for ``noise`` and prices.
        model: path, or what it is called.
        whole: what is no tensor's and no node's.
    """

    tensors: tuple[TensorRecord, ...] = ()
    nodes: tuple[NodeRecord, ...] = ()
    noise: Mapping[str, float] = field(default_factory=dict)
    samples: int = 0
    model: str = ""
    whole: Whole = Whole()

    @property
    def causes(self) -> dict[str, float]:
        """The prices of all tensors and nodes by cause, the dearest first; they add up to the noise of all outputs."""
        total: dict[str, float] = {}
        for price in (*(one.price for one in self.tensors), *(one.price for one in self.nodes)):
            for cause, power in price.items():
                total[cause] = total.get(cause, 0.0) + power
        return dict(sorted(total.items(), key=lambda pair: (-pair[1], pair[0])))

    def to_json(self) -> dict[str, Any]:
        """JSON-ready; with the ``version`` of the form."""
        return {
            "version": VERSION, "model": self.model, "samples": self.samples, "noise": dict(self.noise), "causes": self.causes,
            **({"whole": known} if (known := _json(self.whole)) else {}),
            "tensors": [_json(one) for one in self.tensors], "nodes": [_json(one) for one in self.nodes],
        }  # fmt: skip

    def as_key(self) -> dict[str, Any]:
        """``record`` of the JSON of a result: nothing where nothing is known."""
        return {} if self == NOTHING else {"record": self.to_json()}

    @classmethod
    def from_json(cls, data: object) -> Record:
        """Read the form that `to_json` writes. What is missing is not known; ``causes`` follow from the prices and are not read.

        Raises:
            ModelError: another version, or something that this one does not have; the message says where.
        """
        if not isinstance(data, Mapping):
            raise ModelError("is no record: a record is an object", hint="`explain --json` writes one under `record`")
        version, fields = data.get("version"), {key: value for key, value in data.items() if key not in DERIVED}
        if version != VERSION or isinstance(version, bool):
            hint = "update qdqtool" if isinstance(version, int) and version > VERSION else "write it again"
            raise ModelError(f"has version {version!r}, a record of version {VERSION} can be read", hint=hint)
        try:
            found = typed(cls, fields, strict=True)
            _refuse_encodings(found)
        except ValueError as error:
            raise ModelError(f"the record cannot be read: {error}", hint="write it again") from error
        return found

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Record:
        """The record in a JSON file: what a command wrote that has one under ``record``, or one by itself.

        Raises:
            ModelError: no such file, no JSON, or no record that can be read.
        """
        document = read_document(path)
        try:
            return cls.from_json(document.get("record", document) if isinstance(document, dict) else document)
        except ModelError as error:
            raise ModelError(error.message, where=os.fspath(path), hint=error.hint) from error


#: The record of who knows nothing.
NOTHING = Record()
#: Keys of the JSON form that no field is read from.
DERIVED = ("version", "causes")


def _refuse_encodings(record: Record) -> None:
    """Raise ValueError for the first encoding that is none."""
    for tensor in record.tensors:
        ends = [end for move in tensor.moved for end in (move.before, move.after)]
        for encoding in (tensor.encoding, *ends):
            try:
                if encoding is not None:
                    Encoding.from_json(dict(encoding))
            except (KeyError, TypeError, ValueError, QdqError) as error:
                raise ValueError(f"tensor {tensor.name!r} has an encoding that is none ({error})") from error


def _known(one: TensorRecord | NodeRecord | Whole) -> dict[str, Any]:
    """The fields that are not as they are by default."""
    fields = dataclasses.fields(one)
    return {
        f.name: value
        for f in fields
        if (value := getattr(one, f.name))
        != (f.default if f.default_factory is dataclasses.MISSING else f.default_factory())
    }


def _json(one: TensorRecord | NodeRecord | Whole) -> dict[str, Any]:
    """The fields that are known."""
    data = _known(one)
    if isinstance(one, TensorRecord):
        data |= {"histogram": dataclasses.asdict(one.histogram)} if one.histogram is not None else {}
        data |= {"moved": [dataclasses.asdict(each) for each in one.moved]} if one.moved else {}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in data.items()}


_R = TypeVar("_R", TensorRecord, NodeRecord, Whole)
_N = TypeVar("_N", TensorRecord, NodeRecord)


def merged(records: Iterable[Record]) -> Record:
    """One record of what several know of one model; where two know the same, the later is taken.

    Prices add up to the noise that they are of: noise, samples and prices are those of the last record that has prices, without
    one of the last that has noise.
    """
    listed = list(records)
    heard = [record for record in listed if record.noise]
    told = next((record for record in reversed(heard) if record.causes), heard[-1] if heard else Record())
    listed = [record if record is told else _without_prices(record) for record in listed]
    return Record(
        tensors=_merged(one for record in listed for one in record.tensors),
        nodes=_merged(one for record in listed for one in record.nodes),
        noise=told.noise,
        samples=told.samples,
        model=next((record.model for record in reversed(listed) if record.model), ""),
        whole=functools.reduce(_joined, (record.whole for record in listed), Whole()),
    )


#: Fields that say something together: who knows one of them knows all, and none stays of who knew them before.
TOGETHER: Mapping[type, tuple[tuple[str, ...], ...]] = {
    TensorRecord: (("low", "high", "histogram"),),
    NodeRecord: (
        ("verdict", "rule", "reason", "suggestion", "device", "partition"), ("us", "low_us", "high_us", "limit")
    ),
    Whole: (
        ("target", "operators", "npu_operators", "macs", "npu_macs"), ("chip", "stack", "us", "low_us", "high_us", "notes")
    ),
}  # fmt: skip


def _without_prices(record: Record) -> Record:
    tensors = tuple(dataclasses.replace(one, price={}) if one.price else one for one in record.tensors)
    nodes = tuple(dataclasses.replace(one, price={}) if one.price else one for one in record.nodes)
    return dataclasses.replace(record, tensors=tensors, nodes=nodes)


def _merged(parts: Iterable[_N]) -> tuple[_N, ...]:
    found: dict[str, _N] = {}
    for one in parts:
        before = found.get(one.name)
        found[one.name] = one if before is None else _joined(before, one)
    return tuple(found.values())


def _joined(before: _R, later: _R) -> _R:
    known = _known(later)
    for group in TOGETHER[type(later)]:
        if not known.keys().isdisjoint(group):
            known |= {name: getattr(later, name) for name in group}
    return dataclasses.replace(before, **known)
