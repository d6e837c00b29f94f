"""Scopes: the module path of a node, from exporter metadata or from its name.

Dynamo exports carry the path in ``pkg.torch.onnx.name_scopes`` (a printed Python list, outermost first, the operator last);
TorchScript exports in node names such as ``/model/layers.0/self_attn/q_proj/MatMul``."""

from __future__ import annotations

import ast
import re

import onnx_ir as ir

#: Where a scope may stand in a node's metadata; the first that is present wins.
NAME_SCOPES = "pkg.torch.onnx.name_scopes"
NAMESPACE = "namespace"
SCOPE = "qdqtool.scope"
#: Metadata keys a new node inherits from the node it replaces.
INHERITED_KEYS = (SCOPE, NAME_SCOPES, "pkg.torch.onnx.class_hierarchy", NAMESPACE)


def scope_of(node: ir.Node) -> str:
    """Module path of ``node``, dotted (``model.layers.0.self_attn``); empty when nothing tells it."""
    props = node.metadata_props
    if SCOPE in props:
        return props[SCOPE]
    if NAME_SCOPES in props:
        return _from_name_scopes(props[NAME_SCOPES])
    if NAMESPACE in props:
        return _from_namespace(props[NAMESPACE])
    return _from_name(node.name or "")


def _from_name_scopes(text: str) -> str:
    """``"['', 'model', 'model.layers.0', 'linear']"`` → ``model.layers.0``; the last entry is the operator itself."""
    try:
        entries = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return ""
    if not isinstance(entries, list) or not all(isinstance(e, str) for e in entries):
        return ""
    modules = [e for e in entries[:-1] if e]
    return modules[-1] if modules else ""


def _from_namespace(text: str) -> str:
    """``": Net/layers.0: Block/linear: aten.linear"`` → ``layers.0``: names before each colon, the operator left out."""
    parts = [part.split(":")[0].strip() for part in text.split("/")]
    modules = [part for part in parts[:-1] if part]
    return modules[-1] if modules else ""


def _from_name(name: str) -> str:
    parts = [part for part in name.split("/") if part]
    return ".".join(parts[:-1])


def ancestors(scope: str) -> list[str]:
    """``a.b.c`` → ``["a", "a.b", "a.b.c"]``."""
    parts = scope.split(".") if scope else []
    return [".".join(parts[: i + 1]) for i in range(len(parts))]


def layer_of(node: ir.Node) -> int | None:
    """Index of the layer ``node`` belongs to: the first component of its scope that is a number (``layers.3``) or that ends in
    one after the word layer or block (``layer3``, ``block_3``). None outside of any layer."""
    for part in scope_of(node).split("."):
        if part.isdigit():
            return int(part)
        if match := re.fullmatch(r"(?:layers?|blocks?|stages?|h)_?(\d+)", part, re.IGNORECASE):
            return int(match[1])
    return None
