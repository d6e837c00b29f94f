"""What onnxruntime says when it refuses, as one line of ours that names the node and the way out. Text only."""

from __future__ import annotations

import re

from qdq_passes.errors import ModelError, QdqError, UnsupportedError

from qdqtool.io.models.versions import OPSET
from qdqtool.runtime.memory import exceeded

_STATUS = re.compile(r"^\s*\[ONNXRuntimeError\] : \d+ : \w+ : ")
_SOURCE = re.compile(r"/\S+\.(?:cc|cpp|h|hpp):\d+ .*?\)(?: const)?\s+")
_NO_OPERATOR = re.compile(r'In Node, \("(?P<node>[^"]*)", [^)]*\).*No Op registered for (?P<op>\S+)', re.S)
_NO_FUNCTION = re.compile(r"(?P<op>[\w.]+:\w+)\(-?\d+\) is not a registered function/op")
_NO_KERNEL = re.compile(
    r"(?:Could not find an implementation|Failed to find kernel) for (?P<op>\S+) (?:node with name |\(node:)'(?P<node>[^']*)'"
)
_SINCE = re.compile(r"\((\d+)\)")
_BAD_NODE = re.compile(r'In Node, \("(?P<node>[^"]*)", ')
_VERSION = re.compile(r"(?:Unsupported model IR version|Opset \d+ is under development|support for domain)")
_RUNNING = re.compile(r"while running (?P<op>\S+) node\. Name:'(?P<node>[^']*)' Status Message: (?P<why>.*)", re.S)
_INNER = re.compile(r"while running (?P<op>\S+) node\. Name:'(?P<node>[^']*)'")


class VersionError(UnsupportedError):
    """The model's IR version or opset is newer than what the installed onnxruntime reads."""


def one_line(text: str) -> str:
    """``text`` without onnxruntime's status prefix, source locations and line breaks."""
    return " ".join(_SOURCE.sub("", _STATUS.sub("", text)).split())


def refusal(text: str, *, version: str) -> QdqError:
    """The error for a model that onnxruntime ``version`` does not load, given its message."""
    line = one_line(text)
    beyond = exceeded(text, None, "the model")
    if beyond is not None:
        return beyond
    if _VERSION.search(text):
        hint = "lower it with `qdqtool convert-opset`, or install a newer onnxruntime"
        return VersionError(f"onnxruntime {version} does not read this model: {line}", hint=hint)
    for pattern in (_NO_OPERATOR, _NO_KERNEL, _NO_FUNCTION):
        found = pattern.search(text)
        if found:
            what = "kernel" if pattern is _NO_KERNEL else "operator"
            since = _SINCE.search(found["op"]) if pattern is _NO_KERNEL else None
            lower = "lower the opset with `qdqtool convert-opset`, " if since and int(since[1]) > OPSET else ""
            return UnsupportedError(
                f"onnxruntime {version} has no {what} {found['op'].rstrip(',')} for these types",
                where=found.groupdict().get("node") or None,
                hint=f"{lower}replace the node, or register its custom-operator library",
            )
    node = _BAD_NODE.search(text)
    return ModelError(
        f"onnxruntime {version} refuses the model: {line}", where=(node["node"] or None) if node else None
    )


def failure(text: str) -> QdqError:
    """The error for a run that failed, given onnxruntime's message."""
    found = _RUNNING.search(text)
    innermost = list(_INNER.finditer(text))[-1:]
    beyond = exceeded(text, *(innermost[0].group("node", "op") if innermost else (None, "the model")))
    if beyond is not None:
        return beyond
    if found:
        return ModelError(
            f"{found['op']} fails in onnxruntime: {one_line(found['why'])}",
            where=found["node"] or None,
            hint="compare the shapes and values of the feed with what the model wants",
        )
    return ModelError(f"the run fails in onnxruntime: {one_line(text)}")
