"""Compares what two checkouts wrote, and says where two files begin to differ."""

from __future__ import annotations

import difflib
import fnmatch
import json
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

import onnx

from tests.same_bytes.produce import Record


@dataclass(frozen=True)
class Difference:
    """What two checkouts do not give alike: a part (a file, ``exit`` or ``error``) of a case, or all of it."""

    case: str
    part: str
    what: str


@dataclass(frozen=True)
class Expected:
    """Differences that are meant: globs of their cases and parts, and why."""

    cases: str
    reason: str
    parts: str = "*"

    def covers(self, one: Difference) -> bool:
        """Whether ``one`` is meant."""
        return fnmatch.fnmatchcase(one.case, self.cases) and fnmatch.fnmatchcase(one.part, self.parts)


def expected(path: Path) -> list[Expected]:
    """What a file of ``[[expected]]`` tables lists."""
    return [Expected(**entry) for entry in tomllib.loads(path.read_text(encoding="utf-8")).get("expected", [])]


def differences(before: Mapping[str, Record], after: Mapping[str, Record]) -> list[Difference]:
    """Where results differ, by case."""
    found = []
    for case in sorted(before.keys() | after.keys()):
        if case not in before or case not in after:
            found.append(Difference(case, "", "is gone" if case in before else "is new"))
            continue
        old, new = before[case]["bytes"], after[case]["bytes"]
        for part in sorted(part for part in old.keys() | new.keys() if old.get(part) != new.get(part)):
            what = "differs" if part in old and part in new else "is gone" if part in old else "is new"
            found.append(Difference(case, part, f"{old[part]} → {new[part]}" if part in ("exit", "error") else what))
    return found


def wordings(before: Mapping[str, Record], after: Mapping[str, Record]) -> list[str]:
    """Where texts differ, as lines of a diff."""
    lines: list[str] = []
    for case in sorted(before.keys() & after.keys()):
        old, new = before[case]["words"], after[case]["words"]
        for part in sorted(old.keys() | new.keys()):
            texts = old.get(part, "").splitlines(), new.get(part, "").splitlines()
            lines += difflib.unified_diff(*texts, f"{case} {part}", f"{case} {part}", n=0, lineterm="")
    return lines


def report(
    before: Mapping[str, Record],
    after: Mapping[str, Record],
    meant: Sequence[Expected],
    explain: Callable[[Sequence[Difference]], Mapping[Difference, str]],
    *,
    texts: bool = True,
) -> list[Difference]:
    """Print how two checkouts differ; the differences that are not meant."""
    found = differences(before, after)
    reasons = {one: entry.reason for entry in reversed(meant) for one in found if entry.covers(one)}
    open_ones = [one for one in found if one not in reasons]
    begins = explain(open_ones)
    for one in found:
        more = f" (meant: {reasons[one]})" if one in reasons else begins.get(one, "")
        print(" ".join(filter(None, (one.case, one.part, one.what))) + more)
    lines = wordings(before, after) if texts else []
    print("".join(f"{line}\n" for line in ("wording:", *lines) if lines), end="")
    differing, count = {one.case for one in found}, len({one.case for one in open_ones})
    print(
        f"{len(before.keys() | after.keys()) - len(differing)} cases are the same, {len(differing)} differ, {count} of them not meant"
    )
    return open_ones


def first_difference(old: Path, new: Path) -> str:
    """Where two files begin to differ: an initializer or node of a model, an entry of JSON, else a byte."""
    if old.suffix in (".json", ".onnx"):
        read = _entries if old.suffix == ".json" else _items
        return _first(dict(read(old)), dict(read(new)))
    a, b = old.read_bytes(), new.read_bytes()
    return f"byte {_begin(a, b)} of {len(a)} and {len(b)}"


def _begin(a: Sequence[object], b: Sequence[object]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def _first(old: Mapping[str, str], new: Mapping[str, str]) -> str:
    for key, other in zip_longest(old, new):
        if key != other:
            return f"{key or 'the end'} where the other has {other or 'the end'}"
        if old[key] != new[key]:
            at = max(0, _begin(old[key], new[key]) - 20)
            return f"{key}: {old[key][at : at + 80]} → {new[key][at : at + 80]}"
    return "no entry, only their form"


def _entries(file: Path) -> Iterator[tuple[str, str]]:
    """Each value of a JSON document, by its path."""
    waiting: list[tuple[str, Any]] = [("$", json.loads(file.read_bytes()))]
    while waiting:
        path, data = waiting.pop()
        inner = (
            list(data.items() if isinstance(data, dict) else enumerate(data)) if isinstance(data, dict | list) else []
        )
        waiting += [(f"{path}.{key}", value) for key, value in reversed(inner)]
        if not inner and not path.endswith((".seconds", ".wall_s")):
            yield path, repr(data)


def _items(file: Path) -> Iterator[tuple[str, str]]:
    """What a model consists of, by kind and name."""
    model = onnx.load(file, load_external_data=False)
    yield "versions", repr((model.ir_version, [(opset.domain, opset.version) for opset in model.opset_import]))
    for kind in ("input", "output", "initializer", "node", "value_info"):
        for index, item in enumerate(getattr(model.graph, kind)):
            yield f"{kind} {item.name or index}", repr(item.SerializeToString(deterministic=True))
    yield from ((f"function {function.name}", str(function)) for function in model.functions)
    yield from ((f"metadata {entry.key}", entry.value) for entry in model.metadata_props)
