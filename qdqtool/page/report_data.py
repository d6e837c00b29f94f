"""What the page is given: of each model its tensors and nodes in short, and what is summed up of them.

Keys are short, as they stand a thousand times. Of both ``n`` name, ``s`` share of the noise, ``p`` shares by cause; of
tensors ``k`` kind, ``o`` node, ``g`` grid in words, ``r`` its [lowest, highest, step], ``v`` values' [smallest, largest],
``h`` histogram, ``cl`` clipped share, ``db`` its own SQNR, ``m`` moves as [pass, rule, before, after]; of nodes ``op``,
``t`` tensors written, ``hd`` and ``wd`` SQNR here and with what came in, ``vd`` verdict, ``rs`` reason, ``d`` device,
``us`` [time, low, high], ``b`` bytes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.numerics.encoding import Encoding
from qdq_passes.numerics.reencode import real_range
from qdq_passes.qdq.look.grids import grid_text

from qdqtool.record.record import Histogram, Moved, NodeRecord, Price, Record, TensorRecord

#: Heights of the bars of a histogram, a letter each, from nothing to the highest.
LEVELS = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-_"
#: Rows of the overview at most, where scopes are told apart.
ROWS = 64
#: Path of a module in the names of nodes.
SEPARATORS = ("/", ".")


@dataclass(frozen=True, kw_only=True)
class Edit:
    """An edit that was tried.

    Args:
        kind: in a word.
        command: for a shell.
        wins_db: what it wins at the outputs, measured.
        note: what the target takes more or less of with it.
    """

    kind: str
    command: str
    wins_db: float
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Advice:
    """What to try next.

    Args:
        name: of a tensor or a node.
        kind: ``tensor`` or ``node``.
        cause: in a word.
        why: in a sentence.
        share: of the noise at the outputs, 0..1.
        edits: the best first.
    """

    name: str
    kind: str
    cause: str
    why: str
    share: float
    edits: tuple[Edit, ...] = ()


@dataclass(frozen=True, kw_only=True)
class PageModel:
    """A model on the page.

    Args:
        label: what it is called there.
        record: what is known of it.
        advice: what to try, the best first.
    """

    label: str
    record: Record
    advice: tuple[Advice, ...] = ()


def page_data(models: Sequence[PageModel]) -> dict[str, Any]:
    """JSON-ready: ``levels`` of histograms, ``summary`` [[what, [of each model]]], and ``models``."""
    return {"levels": LEVELS, "summary": _summary(models), "models": [_model(model) for model in models]}


def _model(model: PageModel) -> dict[str, Any]:
    record = model.record
    total = sum(record.noise.values()) if record.noise else None
    return {
        "label": model.label, "noise": _short(total or 0.0), "causes": _shares(record.causes, total or 0.0),
        "tensors": [_tensor(one, total) for one in record.tensors],
        "nodes": [_node(one, total) for one in record.nodes],
        "rows": scope_rows([one.name for one in record.nodes]),
        "placement": _placement(record.nodes), "passes": _passes(record.tensors, total),
        "advice": [
            {
                "n": one.name, "kind": one.kind, "c": one.cause, "why": one.why, "s": _short(one.share),
                "edits": [_edit(edit) for edit in one.edits],
            }
            for one in model.advice
        ],
    }  # fmt: skip


def _summary(models: Sequence[PageModel]) -> list[list[Any]]:
    rows: dict[str, dict[int, str]] = {}
    for at, model in enumerate(models):
        for name, text in _facts(model.record):
            rows.setdefault(name, {})[at] = text
    return [[name, [texts.get(at, "") for at in range(len(models))]] for name, texts in rows.items()]


def _facts(record: Record) -> list[tuple[str, str]]:
    """Lines of the summary: what, and how much."""
    whole, found = record.whole, list[tuple[str, str]]()
    if whole.file_bytes is not None:
        found.append(("size", f"{whole.file_bytes / 1e6:.4g} MB"))
    total = sum(record.noise.values())
    if record.samples:
        if len(record.noise) != 1:
            found.append(("SQNR of all outputs", _db(total)))
        found += [(f"SQNR of {name}", _db(noise)) for name, noise in list(record.noise.items())[:8]]
        found.append(("samples", str(record.samples)))
    found.append(("quantized tensors", str(sum(not one.excluded for one in record.tensors))))
    if whole.target and whole.operators:
        share = 100 * (whole.npu_operators or 0) / whole.operators
        found.append(
            (f"operators on {whole.target}", f"{share:.4g} % ({whole.npu_operators or 0} of {whole.operators})")
        )
    if whole.target and whole.macs:
        found.append((f"MACs on {whole.target}", f"{100 * (whole.npu_macs or 0) / whole.macs:.4g} %"))
    if whole.us is not None:
        low, high = (f"{us / 1000:.4g}" if us is not None else "?" for us in (whole.low_us, whole.high_us))
        name = f"one run on {whole.chip}{f' with {whole.stack}' if whole.stack else ''}"
        found.append((name, f"{whole.us / 1000:.4g} ms (80 % of measurements between {low} and {high})"))
    found += [("about the time", note) for note in whole.notes[:1]]
    return found


def _db(noise: float) -> str:
    return f"{-10 * math.log10(noise):.2f} dB" if noise > 0 else "exact"


def _short(number: float | None) -> float | None:
    """Four digits of it; None of what no JSON number is."""
    return float(f"{number:.4g}") if number is not None and math.isfinite(number) else None


def _edit(edit: Edit) -> list[str | float]:
    return [edit.kind, edit.command, round(edit.wins_db, 2), *([edit.note] if edit.note else [])]


def _shares(price: Price, total: float) -> dict[str, float | None]:
    return {cause: _short(power / total if total > 0 else 0.0) for cause, power in price.items() if power}


def _known(data: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in data.items() if value not in (None, "", [], {})}


def _tensor(one: TensorRecord, total: float | None) -> dict[str, Any]:
    encoding = None if one.encoding is None else Encoding.from_json(dict(one.encoding))
    return _known(
        {
            "n": one.name, "k": one.kind, "o": one.node, "s": _short(_share(one.price, total)),
            "p": _shares(one.price, total or 0.0), "g": "" if encoding is None else grid_text(encoding),
            "r": None if encoding is None else _range(encoding),
            "v": None if one.low is None or one.high is None else [_short(one.low), _short(one.high)],
            "h": None if one.histogram is None else levels(one.histogram),
            "cl": _short(one.clipped), "db": _short(one.sqnr_db), "m": [_move(each) for each in one.moved],
        }
    )  # fmt: skip


def _node(one: NodeRecord, total: float | None) -> dict[str, Any]:
    return _known(
        {
            "n": one.name, "op": one.op, "t": list(one.tensors), "s": _short(_share(one.price, total)),
            "p": _shares(one.price, total or 0.0), "hd": _short(one.here_db), "wd": _short(one.whole_db), "vd": one.verdict,
            "rs": one.reason, "d": one.device, "b": one.bytes,
            "us": None if one.us is None else [_short(one.us), _short(one.low_us), _short(one.high_us)],
        }
    )  # fmt: skip


def _share(price: Price, total: float | None) -> float | None:
    """Of the noise; None where nobody measured it."""
    return None if total is None else sum(price.values()) / total if total > 0 else 0.0


def _range(encoding: Encoding) -> list[float | None]:
    """[lowest, highest, largest step] of the grid; of several scales the widest."""
    low, high = real_range(encoding)
    return [_short(float(np.min(low))), _short(float(np.max(high))), _short(max(encoding.scale, default=0.0))]


def _move(one: Moved) -> list[str]:
    before, after = (
        "" if each is None else grid_text(Encoding.from_json(dict(each))) for each in (one.before, one.after)
    )
    return [one.by, one.because, before, after]


def levels(histogram: Histogram) -> str:
    """A letter of `LEVELS` for each bin, by the root of its count: one value among a million is still seen."""
    most = max(histogram.counts, default=0)
    last = len(LEVELS) - 1
    return "".join(
        LEVELS[0 if not count else max(1, round(last * math.sqrt(count / most)))] for count in histogram.counts
    )


def scope_rows(names: Sequence[str]) -> list[list[Any]]:
    """[scope, first node, one behind the last] of consecutive nodes of one scope, as deep as `ROWS` rows allow."""
    best: list[list[Any]] = [["", 0, len(names)]] if names else []
    for depth in range(1, 8):
        rows: list[list[Any]] = []
        for at, name in enumerate(names):
            scope = _scope(name, depth)
            if rows and rows[-1][0] == scope:
                rows[-1][2] = at + 1
            else:
                rows.append([scope, at, at + 1])
        if len(rows) > ROWS or (depth > 1 and len(rows) == len(best)):
            break
        best = rows
    return best


def _scope(name: str, depth: int) -> str:
    mark = next((sign for sign in SEPARATORS if sign in name.strip("/.")), None)
    return "" if mark is None else mark.join(name.strip(mark).split(mark)[:-1][:depth])


def _placement(nodes: Sequence[NodeRecord]) -> list[list[Any]]:
    """[verdict, device, reason, operators, nodes, microseconds or None] of nodes alike, the most first."""
    groups: dict[tuple[str, str, str], list[NodeRecord]] = {}
    for node in nodes:
        if node.verdict:
            groups.setdefault((node.verdict, node.device, node.reason), []).append(node)
    found = []
    for (verdict, device, reason), members in sorted(groups.items(), key=lambda item: (-len(item[1]), item[0])):
        times = [node.us for node in members if node.us is not None]
        ops = ", ".join(dict.fromkeys(node.op for node in members))
        found.append([verdict, device, reason, ops, len(members), _short(sum(times)) if times else None])
    return found


def _passes(tensors: Sequence[TensorRecord], total: float | None) -> list[list[Any]]:
    """[pass, tensors whose grid it chose, those whose grid it changed, share of the noise of the latter], as they ran."""
    chosen: dict[str, int] = {}
    changed: dict[str, dict[str, float | None]] = {}
    for tensor in tensors:
        for move in tensor.moved:
            chosen[move.by] = chosen.get(move.by, 0) + (move.before is None)
            if move.before is not None:
                changed.setdefault(move.by, {})[tensor.name] = _share(tensor.price, total)
    none: Mapping[str, float | None] = {}
    return [
        [by, count, len(changed.get(by, none)), _short(_sum(changed.get(by, none).values()))]
        for by, count in chosen.items()
    ]


def _sum(shares: Iterable[float | None]) -> float | None:
    """None where one is."""
    listed = list(shares)
    known = [share for share in listed if share is not None]
    return sum(known) if len(known) == len(listed) else None
