"""Measured times, one a row, as the public rows have them: a network's run, a prefill, a token of a decode."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from qdq_passes._lazy_dataclass import dataclass

Phase = Literal["", "prefill", "decode"]

#: Milliseconds of a second.
MS = 1000.0


@dataclass(frozen=True, kw_only=True)
class Row:
    """One published or measured time.

    Args:
        id: what it is called in reports; unique in its file.
        model: the network, or the language model by a name of `shapes`.
        stack: the runtime: ``qnn_dlc``, ``genie``, ``llm.npu``.
        precision: as published: ``float``, ``w8a8``, ``w4a16``.
        value: in ``unit``.
        unit: ``ms``, or ``tok/s``.
        metric: ``latency`` of one run or token, ``latency_total`` of a whole decode, ``throughput`` in tokens a second.
        chip: its name; "" where only the board is told.
        device: the board.
        phase: of a language model; "" of a network.
        component: part of a network of several.
        seq_len: prefill: tokens; decode: context at that moment; 0 where it is not told.
        ctx: static context the graph was compiled for; 0 where it is not told.
        out_tokens: tokens of a ``latency_total``.
        dataset: of whose prompts and answers the time is the mean; "" of one length.
        seq_range: least and most of the prompts' lengths, of which ``seq_len`` is the middle; None where they are not told.
        out_range: the same of the answers' and ``out_tokens``.
        batch: inputs at once.
        month: when it was measured, ``2026-02``; "" where it is not told.
        source: where it was read.
        off_npu: operators that ran elsewhere, on the CPU or the GPU.
        suspect: whether it contradicts its own table.
        duplicate: whether the same measurement stands under another name as well.
    """

    id: str
    model: str
    stack: str
    precision: str
    value: float
    unit: str = "ms"
    metric: str = "latency"
    chip: str = ""
    device: str = ""
    phase: Phase = ""
    component: str = ""
    seq_len: int = 0
    ctx: int = 0
    out_tokens: float = 0
    dataset: str = ""
    seq_range: tuple[float, float] | None = None
    out_range: tuple[float, float] | None = None
    batch: int = 1
    month: str = ""
    source: str = ""
    off_npu: int = 0
    suspect: bool = False
    duplicate: bool = False

    @property
    def ms(self) -> float:
        """Milliseconds of one run, one prefill or one token."""
        return self.value_of(self.value)

    def value_of(self, number: float) -> float:
        """Milliseconds where ``number`` is in the row's unit, and the other way round: the two are each other's inverse."""
        if self.metric == "throughput":
            return (self.seq_len if self.phase == "prefill" else 1) * MS / number
        return number

    @property
    def length_range(self) -> tuple[float, float] | None:
        """Of the mean length that the time hangs on, where a range is all that is told of it."""
        if self.phase == "decode" and self.metric == "latency_total":
            found, told = self.out_range, self.out_tokens
        elif self.phase == "prefill" and self.metric != "throughput":
            found, told = self.seq_range, self.seq_len
        else:
            return None
        return found if found is not None and abs(told - sum(found) / 2) < 1 else None

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Row:
        """The row of one entry of ``rows``; columns that it does not know are let be."""
        ranges = {name: _ends(data.get(name)) for name in ("seq_range", "out_range")}
        return cls(
            id=str(data["id"]),
            model=str(data.get("model") or ""),
            stack=str(data.get("stack") or ""),
            precision=str(data.get("precision") or ""),
            value=float(data["value"]),
            unit=str(data.get("unit") or "ms"),
            metric=str(data.get("metric") or "latency"),
            chip=str(data.get("chip") or ""),
            device=str(data.get("device") or ""),
            phase=data.get("phase") if data.get("phase") in ("prefill", "decode") else "",  # type: ignore[arg-type]
            component=str(data.get("component") or ""),
            seq_len=int(data.get("seq_len") or sum(ranges["seq_range"] or ()) / 2),
            ctx=int(data.get("ctx") or 0),
            out_tokens=float(data.get("out_tokens") or sum(ranges["out_range"] or ()) / 2),
            dataset=str(data.get("dataset") or ""),
            **ranges,
            batch=int(data.get("batch") or 1),
            month=str(data.get("month") or ""),
            source=str(data.get("source") or ""),
            off_npu=int(data.get("off_npu") or 0),
            suspect=bool(data.get("suspect")),
            duplicate=bool(data.get("duplicate")),
        )


def _ends(given: Any) -> tuple[float, float] | None:
    return (float(min(given)), float(max(given))) if given else None
