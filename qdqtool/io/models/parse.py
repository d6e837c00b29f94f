"""Bytes → `onnx.ModelProto`, by the format the file name tells: ``.onnx`` (and anything unknown) binary, ``.onnxtxt`` the text
syntax of the ONNX specification, ``.json``, ``.textproto`` and what else onnx has registered; and what of a protobuf is refused
because no graph can be made of it (`check_model`)."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import onnx
from qdq_passes.core import budget
from qdq_passes.errors import ModelError, UnsupportedError

from qdqtool.io.files.read import read_bytes
from qdqtool.io.models.operands import check_operands
from qdqtool.io.models.proto_tensors import DAMAGED, TensorRules
from qdqtool.io.models.signatures import Signatures, function_signature

#: The protobuf library reads no message of 2 GiB or more.
PROTOBUF_LIMIT = 2**31 - 1
#: Brackets open at once in text: protobuf allows 100 nested messages, and the C++ parser of the text has no limit but its stack.
MAX_DEPTH = 300
#: What a node is counted as where functions are written out, and how many nodes each one stored may become in any case.
NODE_BYTES, NODES_A_NODE = 1 << 16, 256
#: First bytes (after an offset) of files that people take for models.
LOOKALIKES = (
    (0, b"version https://git-lfs", "is a git-lfs pointer, not the model", "run `git lfs pull`"),
    (0, b"PK\x03\x04", "is a zip archive", "unpack it (a .pt or .pth file must be exported to ONNX)"),
    (0, b"\x1f\x8b", "is gzip-compressed", "unpack it with gunzip"),
    (0, b"\x89HDF", "is an HDF5 file", "convert the Keras model with tf2onnx"),
    (0, b"<", "is text", "fetch an HTML page again as the model; name ONNX text .onnxtxt"),
    (4, b"ORTM", "is an ORT-format model", "give the .onnx file it was made of"),
    (4, b"TFL3", "is a TensorFlow Lite model", "convert it with tf2onnx"),
)


Call = tuple[str, str, str]
A = onnx.AttributeProto
SPARSE = (A.SPARSE_TENSOR, A.SPARSE_TENSORS)
#: Types of values that onnx_ir cannot hold.
UNHELD = {"map_type": "maps (a classifier's ZipMap: export with zipmap=False)", "opaque_type": "opaque values"}


def read_model(path: str | os.PathLike[str], hasher: Callable[[bytes], object] | None = None) -> onnx.ModelProto:
    """Parse the file at ``path``, and hand its bytes to ``hasher``; external data is not read.

    Raises:
        ModelError: no such file, or no ONNX model in it.
    """
    where = os.fspath(path)
    extension = os.path.splitext(where)[1].lower()
    form = onnx.serialization.registry.get_format_from_file_extension(extension) or "protobuf"
    data = read_bytes(path)
    if hasher is not None:
        hasher(data)
    budget.brought(model=len(data))
    if form == "protobuf":
        return _parse_binary(data, where)
    _refuse_depth(data, where)
    try:
        if form == "onnxtxt":
            return onnx.parser.parse_model(data.decode())
        return onnx.serialization.registry.get(form).deserialize_proto(data, onnx.ModelProto())
    except Exception as error:  # each parser has errors of its own for text that is not its syntax
        raise ModelError(f"is not ONNX {form} ({_one_line(error)})", where=where, hint="look at that place") from error


def _parse_binary(data: bytes, where: str) -> onnx.ModelProto:
    for offset, magic, what, hint in LOOKALIKES:
        if data.startswith(magic, offset):
            raise ModelError(what, where=where, hint=hint)
    if len(data) > PROTOBUF_LIMIT:
        raise ModelError("is larger than 2 GiB", where=where, hint="save it with its weights as external data")
    model = onnx.ModelProto()
    try:
        model.ParseFromString(data)
    except Exception as error:
        raise ModelError(
            "is not an ONNX model, or cut off (protobuf cannot read it)", where=where, hint="fetch or export it again"
        ) from error
    return model


def _refuse_depth(data: bytes, where: str) -> None:
    depth = deepest = 0
    for bracket in re.findall(rb'"(?:\\.|[^"\\])*"|[][(){}]', data):
        depth += {b"(": 1, b"[": 1, b"{": 1}.get(bracket, -1 if len(bracket) == 1 else 0)
        deepest = max(deepest, depth)
    if deepest > MAX_DEPTH:
        raise ModelError(f"nests {deepest} deep", where=where, hint=f"{MAX_DEPTH} is the limit")


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if len(text) <= 200 else text[:200] + "…"


def check_model(model: onnx.ModelProto, folder: str | None, *, weights: bool = True) -> TensorRules:
    """Check everything that must hold before ``model`` can be turned into a graph.

    Args:
        model: the parsed file.
        folder: folder of the file, where its external data lies; None for a model that comes from memory.
        weights: whether every file of external data must be there.

    Raises:
        ModelError: the model is broken.
        UnsupportedError: it has a construct that would be lost: sparse tensors, maps, training information.
    """
    tensors = TensorRules(folder, weights=weights)
    _check_header(model)
    own = {(_text(f.domain), _text(f.name), _text(f.overload)): function_signature(f) for f in model.functions}
    versions = {"": onnx.defs.onnx_opset_version(), **_versions(model.opset_import)} if model.opset_import else {"": 1}
    main = _Scope(model.graph, [], tensors, Signatures(versions, own))
    main.check()
    calls: dict[Call, Counter[Call]] = {}
    for function in model.functions:
        key = (_text(function.domain), _text(function.name), _text(function.overload))
        if key in calls:
            raise ModelError("defined twice", where=f"function {key[0]}::{key[1]}", hint="keep one of them")
        imported = {**versions, **_versions(function.opset_import)}
        scope = _Scope(function, [], tensors, Signatures(imported, own), in_function=True)
        scope.check()
        calls[key] = scope.calls
    check_call_order(calls)
    _check_calls(main.calls, calls)
    budget.brought(model=sum(tensors.sizes.values()))
    return tensors


def _check_calls(main: Counter[Call], calls: Mapping[Call, Counter[Call]]) -> None:
    """Refuse functions that call each other so often that nobody could write out what the model computes."""
    nodes: dict[Call, int] = {}

    def written_out(uses: Counter[Call]) -> int:
        return min(sum(count * nodes.get(call, 1) for call, count in uses.items()), 1 << 63)

    stack = list(calls)
    while stack:
        waiting = [call for call in calls[stack[-1]] if call in calls and call not in nodes]
        if waiting:
            stack += waiting
        else:
            key = stack.pop()
            nodes[key] = written_out(calls[key])
    total, stored = written_out(main), sum(map(Counter.total, (main, *calls.values())))
    largest = max(nodes, key=lambda key: nodes[key], default=None)
    if largest is not None and total > stored:
        text = f"calls of functions that call others, {total:,} nodes written out of {stored:,},"
        demand = total * NODE_BYTES - stored * NODES_A_NODE * NODE_BYTES
        where, hint = f"function {'::'.join(filter(None, largest))}", "write them out where the model is exported"
        budget.demand(demand, text, where=where, hint=hint)


def _check_header(model: onnx.ModelProto) -> None:
    if not model.HasField("graph") or model.ir_version < 1:
        raise ModelError("is not an ONNX model (no graph, or no IR version)", hint="give an .onnx file")
    if model.ir_version >= 3 and not model.opset_import:
        raise ModelError("imports no operator set", hint="the file may be cut off: fetch or export it again")
    if len(model.training_info):
        raise UnsupportedError("holds training information", hint="export it for inference")
    _versions(model.opset_import)


def _versions(imports: Iterable[onnx.OperatorSetIdProto]) -> dict[str, int]:
    """Domain → version; ``ai.onnx`` is the default domain."""
    versions: dict[str, int] = {}
    for opset in imports:
        domain = "" if opset.domain == "ai.onnx" else _text(opset.domain)
        if not 1 <= opset.version < 2**31:  # beyond, it is none for onnx either
            raise ModelError(f"imports version {opset.version} of domain {domain!r}", hint=DAMAGED)
        if versions.setdefault(domain, opset.version) != opset.version:
            raise ModelError(
                f"imports versions {versions[domain]} and {opset.version} of domain {domain!r}",
                hint="keep the one the operators are written for",
            )
    return versions


def _text(text: str | bytes) -> str:
    """``text``, unless it is no UTF-8: the protobuf library then hands out bytes."""
    if isinstance(text, bytes):
        raise ModelError(f"a name is not UTF-8 text: {text[:40]!r}", hint=DAMAGED)
    return text


class _Scope:
    """One graph or function: what it defines, and what it reads from around it."""

    def __init__(
        self,
        graph: onnx.GraphProto | onnx.FunctionProto,
        outer: list[set[str]],
        tensors: TensorRules,
        signatures: Signatures,
        *,
        in_function: bool = False,
    ) -> None:
        self.graph = graph
        self.in_function = in_function
        self.outer = outer
        self.tensors = tensors
        self.signatures = signatures
        self.name = _text(graph.name) or "main"
        #: Everything defined in this scope.
        self.defined: set[str] = set()
        #: Sizes of its initializers.
        self.weights: dict[str, list[int]] = {}
        #: Names read from the scopes around this one.
        self.captured: set[str] = set()
        #: Operators used, bodies included, as function identifiers.
        self.calls: Counter[Call] = Counter()

    def check(self) -> None:
        """Single assignment, no missing tensors, an order exists, sane tensors; bodies included."""
        if isinstance(self.graph, onnx.GraphProto):
            self._check_graph_values(self.graph)
        else:
            for name in self.graph.input:
                self._define(name, self.defined, "input")
            self._check_attributes(self.graph.attribute_proto, f"function {self.name!r}")
        nodes = self.graph.node
        for node in nodes:
            for name in node.output:
                if name:
                    self._define(name, self.defined, "node output")
        reads = [self._check_node(node) for node in nodes]
        check_order(nodes, reads, [[name for name in node.output if name] for node in nodes])
        for output in self.graph.output:
            name = output if isinstance(output, str) else self._check_value(output)
            if name not in self.defined:
                raise ModelError(f"output {name!r} is computed by no node", where=f"graph {self.name!r}", hint=DAMAGED)

    def _check_graph_values(self, graph: onnx.GraphProto) -> None:
        if len(graph.sparse_initializer):
            name = graph.sparse_initializer[0].values.name
            raise UnsupportedError(
                "sparse initializers are not supported",
                where=f"tensor {name!r}",
                hint="store it as a dense initializer",
            )
        for info in graph.input:
            self._define(self._check_value(info), self.defined, "input")
        initializers: set[str] = set()
        for tensor in graph.initializer:
            self._define(tensor.name, initializers, "initializer")
            self.tensors.check(tensor, f"tensor {tensor.name!r}")
            self.weights[tensor.name] = list(tensor.dims)
        self.defined |= initializers
        for info in graph.value_info:
            self._check_value(info)

    def _define(self, name: str | bytes, names: set[str], what: str) -> None:
        if not _text(name):
            raise ModelError(f"an {what} has no name", where=f"graph {self.name!r}", hint=DAMAGED)
        if name in names:
            raise ModelError(
                f"{what} {name!r} is defined twice", where=f"graph {self.name!r}", hint="every value is written once"
            )
        names.add(_text(name))

    def _check_value(self, info: onnx.ValueInfoProto) -> str:
        kind = info.type.WhichOneof("value")
        if kind in UNHELD:
            raise UnsupportedError(
                f"{UNHELD[kind]} are not supported", where=f"value {info.name!r}", hint="leave that output out"
            )
        return _text(info.name)

    def _check_node(self, node: onnx.NodeProto) -> list[str]:
        """Check one node and its bodies; the names it reads, bodies included, that this scope defines."""
        where = f"{_text(node.op_type)} {_text(node.name)!r}"
        self.calls[_text(node.domain), node.op_type, _text(node.overload)] += 1
        reads = [name for name in node.input if name]
        if len(node.attribute):
            reads += self._check_attributes(node.attribute, where)
        self.signatures.check(node, where)
        check_operands(node, self.weights.get, where)
        own = []
        for name in reads:
            if name in self.defined:
                own.append(name)
            elif any(name in scope for scope in self.outer):
                self.captured.add(name)
            else:
                raise ModelError(
                    f"reads {name!r}, which nothing defines", where=where, hint="a tensor is missing: export it again"
                )
        return own

    def _check_attributes(self, attributes: Iterable[onnx.AttributeProto], where: str) -> set[str]:
        names: set[str] = set()
        captured: set[str] = set()
        for attribute in attributes:
            name = _text(attribute.name)
            if name in names:
                raise ModelError(f"attribute {name!r} is given twice", where=where, hint=DAMAGED)
            names.add(name)
            kind = attribute.type
            if attribute.ref_attr_name and not self.in_function:
                message = (
                    f"attribute {name!r} is the parameter {attribute.ref_attr_name!r} of a function, and stands in none"
                )
                raise ModelError(message, where=where, hint=DAMAGED)
            if attribute.ref_attr_name or kind in (A.INT, A.FLOAT, A.STRING, A.INTS, A.FLOATS):
                continue
            if kind in SPARSE:
                raise UnsupportedError(
                    f"the sparse tensor {name!r} is not supported", where=where, hint="store it as a dense tensor"
                )
            if kind == A.UNDEFINED:
                raise ModelError(f"attribute {name!r} has no type", where=where, hint=DAMAGED)
            for tensor in [attribute.t] if kind == A.TENSOR else attribute.tensors:
                self.tensors.check(tensor, where)
                if kind == A.TENSORS and tensor.data_location == onnx.TensorProto.EXTERNAL:
                    raise UnsupportedError(f"external data in the list {name!r}", where=where, hint="store it inside")
            for body in [attribute.g] if kind == A.GRAPH else attribute.graphs:
                outer = [*self.outer, self.defined]
                scope = _Scope(body, outer, self.tensors, self.signatures, in_function=self.in_function)
                scope.check()
                captured |= scope.captured
                self.calls.update(scope.calls)
        return captured


def check_order(nodes: Sequence[onnx.NodeProto], reads: list[list[str]], writes: list[list[str]]) -> None:
    """Raise `ModelError` when no order of ``nodes`` computes everything before it is read.

    A graph that is merely not sorted passes: `verify` reports it, and the pass ``sort`` repairs it.

    Args:
        nodes: nodes of one graph.
        reads: names each node (with its bodies) reads.
        writes: names each node writes.
    """
    pending: set[str] = set().union(*writes)
    for read, written in zip(reads, writes, strict=True):
        if not pending.isdisjoint(read):
            break
        pending.difference_update(written)
    else:
        return
    stuck = _stuck(reads, writes)
    if stuck:
        names = [f"{nodes[i].op_type} {nodes[i].name or nodes[i].output[0]!r}" for i in stuck]
        raise ModelError(
            f"the graph has a cycle through {len(stuck)} nodes", where=names[0], hint="cut it: no order can compute it"
        )


def _stuck(reads: list[list[str]], writes: list[list[str]]) -> list[int]:
    """Indices of the nodes on cycles, in file order, after everything that can be computed has been, from both ends."""
    writer = {name: index for index, written in enumerate(writes) for name in written}
    needs = [{writer[name] for name in read if name in writer} for read in reads]
    feeds: list[set[int]] = [set() for _ in reads]
    for index, sources in enumerate(needs):
        for source in sources:
            feeds[source].add(index)
    left = set(range(len(reads)))
    for before, after in ((needs, feeds), (feeds, needs)):
        counts = {index: len(before[index] & left) for index in left}
        ready = [index for index, count in counts.items() if count == 0]
        while ready:
            done = ready.pop()
            left.discard(done)
            for index in after[done] & left:
                counts[index] -= 1
                if counts[index] == 0:
                    ready.append(index)
    return sorted(left)


def check_call_order(calls: Mapping[Call, Collection[Call]]) -> None:
    """Raise `ModelError` when local functions call each other in a circle.

    Args:
        calls: for each function (domain, name, overload), the operators it uses.
    """
    keys = list(calls)
    names = [["::".join(filter(None, key))] for key in keys]
    reads = [["::".join(filter(None, call)) for call in sorted(calls[key]) if call in calls] for key in keys]
    stuck = _stuck(reads, names)
    if stuck:
        raise ModelError(
            "local functions call each other in a circle",
            where=names[stuck[0]][0],
            hint="functions may not be recursive",
        )
