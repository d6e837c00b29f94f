"""Rules on names: of values, of nodes, of operators and their sets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import onnx.defs
import onnx_ir as ir

from qdq_passes.core.findings import Level, Problem, place
from qdq_passes.npu.program import DOMAIN, VERSION

if TYPE_CHECKING:
    from qdq_passes.verification.rules import Scope, Walk

#: Domains whose operators onnx lists.
ONNX_DOMAINS = ("", "ai.onnx.ml", "ai.onnx.preview.training")
#: Operators that onnxruntime accepts in the default domain although ONNX has none of that name there (tried on 1.31.1).
RUNTIME_OPERATORS = frozenset({"SimplifiedLayerNormalization", "LayerNormalization"})


def single_assignment(walk: Walk) -> Iterator[Problem]:
    """A name stands for one value in its graph, and hides none of the graphs around it."""
    hint = "rename one of the two"
    for clash in walk.clashes:
        name, scope = clash.value.name or "", clash.scope.name
        if clash.is_same_scope:
            yield "fatal", name, f"the {clash.what} is defined twice in {scope}", hint
        else:
            # onnx.checker and onnxruntime refuse this for outputs of nodes, and accept it for the rest
            level: Level = "error" if clash.what == "output" else "warning"
            yield level, name, f"the {clash.what} of {scope} hides a value of a graph around it", hint


def named_values(walk: Walk) -> Iterator[Problem]:
    """Whatever is read has a name: in a file the name is the connection."""
    for read in walk.nameless:
        where = place(read.node) if read.node is not None else read.scope.name
        yield "error", where, "reads a value that has no name", "give the value a name"


def unique_node_names(walk: Walk) -> Iterator[Problem]:
    """No two nodes share a name; functions are looked at one by one, and nodes without a name are allowed.

    Within one graph onnxruntime refuses it. Between a graph and its bodies it is legal (exporters do it), but selectors,
    reports and NPU compilers cannot tell the nodes apart.
    """
    scopes: dict[tuple[int, str], list[Scope]] = {}
    for node, scope in walk.nodes:
        if node.name:
            scopes.setdefault((id(scope.function), node.name), []).append(scope)
    for (_, name), found in scopes.items():
        if len(found) > 1:
            distinct = list(dict.fromkeys(found))
            level: Level = "warning" if len(distinct) == len(found) else "error"
            message = f"{len(found)} nodes of {' and of '.join(s.name for s in distinct[:2])} have this name"
            yield level, name, message, "run the pass give-names"


def opset_imports(walk: Walk) -> Iterator[Problem]:
    """The operator set of every domain in use is imported, by the model or by the function that uses it."""
    if not walk.model.opset_imports and walk.model.ir_version < 3:
        return
    missing: dict[tuple[int, str], ir.Node] = {}
    for node, scope in walk.nodes:
        if node.domain not in scope.imports:
            missing.setdefault((id(scope.function), node.domain), node)
    for (_, domain), node in missing.items():
        message = f"{node.op_type} is of domain {domain or 'ai.onnx'}, which is not imported"
        yield "error", place(node), message, "add the domain to the opset imports"


def known_operators(walk: Walk) -> Iterator[Problem]:
    """Operators of ONNX's own domains, and of the NPU's programs, exist in the opset that is imported."""
    unknown: dict[tuple[str, str, int], list[ir.Node]] = {}
    known: dict[tuple[str, str, int], bool] = {}
    functions = {(domain, name) for domain, name, _ in walk.model.functions}
    for node, scope in walk.nodes:
        key = (node.domain, node.op_type, scope.imports.get(node.domain, 0))
        if key not in known:
            known[key] = _is_known(*key) or key[:2] in functions
        if not known[key]:
            unknown.setdefault(key, []).append(node)
    for (domain, op_type, version), nodes in unknown.items():
        count = f" ({len(nodes)} nodes)" if len(nodes) > 1 else ""
        if not domain and op_type in RUNTIME_OPERATORS:
            message = f"{op_type}{count} is an operator of onnxruntime, not of ONNX opset {version}"
            yield "note", place(nodes[0]), message, "onnxruntime runs it; onnx.checker rejects the file"
        else:
            message = f"there is no {op_type}{count} in opset {version} of {domain or 'ai.onnx'}"
            yield "warning", place(nodes[0]), message, "check the operator's name and domain, or convert the opset"


def _is_known(domain: str, op_type: str, version: int) -> bool:
    """Whether ONNX has the operator, as far as the installed onnx can tell, or programs have it."""
    if domain == DOMAIN:
        from qdq_passes.npu.program.operators import ROWS

        return version == VERSION and op_type in ROWS
    if domain not in ONNX_DOMAINS or not version or (not domain and version > onnx.defs.onnx_opset_version()):
        return True
    return bool(onnx.defs.has(op_type, version, domain))


def attribute_references(walk: Walk) -> Iterator[Problem]:
    """Only nodes of a function refer to attributes of the function."""
    for node, name in walk.loose_references:
        yield "error", place(node), f"attribute {name!r} refers to a function, outside of any", "give it a value"
