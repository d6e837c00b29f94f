"""What records say of a decoder that is planned: which operators run on the CPU, and what a run of one of its graphs takes."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import get_args

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.decoder.look.record import Phase
from qdq_passes.errors import UsageError
from qdq_passes.npu.units.verdict import CPU

from qdqtool.chips.chip import Chip, Profile
from qdqtool.cost.planning import Run
from qdqtool.cost.predicting import Span
from qdqtool.llm.folder.manifest import read_manifest
from qdqtool.record.record import NOTHING, NodeRecord, Record, Whole, merged
from qdqtool.verbs.work.decoder_shapes import graph_without_weights, is_split
from qdqtool.verbs.work.records import graph_record


@dataclass(frozen=True, kw_only=True)
class Known:
    """What is known of the graphs.

    Args:
        record: of all that was given, in the order of the graph.
        on_cpu: by phase the operators that a target leaves to the CPU.
        times: of runs of graphs on the chip, with the runtime.
        notes: what follows from it, in words.
    """

    record: Record = NOTHING
    on_cpu: Mapping[Phase, int] = field(default_factory=dict)
    times: Mapping[Run, Span] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def known_of(
    text: str, given: Iterable[Record | str | os.PathLike[str]], chip: Chip, profile: Profile, *, is_quantized: bool
) -> Known:
    """What ``given`` say of the decoder ``text``: one that names a graph of its folder of that one, others of all.

    Args:
        text: a model, or a folder that `split` wrote.
        given: records, or files that have one.
        chip: where it runs.
        profile: of the runtime; a time of another one says nothing here.
        is_quantized: whether the graphs are as they will run; only then their times are those of the plan.

    Raises:
        UsageError: there is no graph, or a record is of another one.
        ModelError: a file has no record that can be read.
    """
    records = [(each if isinstance(each, Record) else Record.read(each), each) for each in given]
    if not records:
        return Known()
    model = graph_without_weights(text)
    if model is None:
        raise UsageError(
            "a shape has no nodes that a record could tell of", where=text, hint="plan a model or a folder"
        )
    graph = graph_record(model)
    models = read_manifest(text).models if is_split(text) else []
    graphs = {os.path.basename(part.file): one for one in models for part in one.parts}
    names = {node.name for node in graph.nodes}
    on_cpu: dict[Phase, set[str]] = {phase: set() for phase in get_args(Phase)}
    times: dict[Run, Span] = {}
    for record, source in records:
        own = [node for node in record.nodes if node.name in names]
        if 2 * len(own) <= len(record.nodes) or not own:
            told = f"the record is of another model: of its {len(record.nodes)} nodes {len(own)} are in {text}"
            where = None if isinstance(source, Record) else os.fspath(source)
            raise UsageError(
                told, where=where, hint="`qdqtool analyze MODEL --target T --json-out FILE` writes one of it"
            )
        one = graphs.get(os.path.basename(record.model))
        for phase in get_args(Phase) if one is None else (one.phase,):
            on_cpu[phase] |= _on_cpu(own)
        if is_quantized and one is not None and len(one.parts) == 1 and _is_of(record.whole, chip, profile):
            times[one.phase, one.seq_len, one.ctx_len] = _span(record.whole)
    counts = {phase: len(found) for phase, found in on_cpu.items() if found}
    whole = merged([graph, *(record for record, _ in records)])
    return Known(record=whole, on_cpu=counts, times=times, notes=tuple(_notes(whole, on_cpu, times)))


def _on_cpu(nodes: Iterable[NodeRecord]) -> set[str]:
    return {node.name for node in nodes if node.device == CPU}


def _is_of(whole: Whole, chip: Chip, profile: Profile) -> bool:
    return whole.us is not None and (whole.chip, whole.stack) == (chip.name, profile.stack)


def _span(whole: Whole) -> Span:
    assert whole.us is not None
    low, high = (whole.us if end is None else end for end in (whole.low_us, whole.high_us))
    return Span(ms=whole.us / 1000, low=low / 1000, high=high / 1000)


def _notes(whole: Record, on_cpu: Mapping[Phase, set[str]], times: Mapping[Run, Span]) -> Iterable[str]:
    found = sorted(set().union(*on_cpu.values()))
    if found and not any(node.device not in ("", CPU) for node in whole.nodes):
        yield "by the record the NPU runs nothing of it: the times of the chip say nothing"
    elif found:
        phases = " and ".join(phase for phase, names in on_cpu.items() if names)
        why = next(node.reason for node in whole.nodes if node.name == found[0])
        first = f"{found[0]}{f' ({why})' if why else ''}"
        yield (
            f"operators of {phases} that run on the CPU by the record: {len(found)}, first {first}; published pairs take 0.73 to "
            f"2.6 times as long, and the intervals hold that"
        )
    if times:
        yield f"as the record has it: the time of {', '.join(f'{phase} of {tokens} tokens' for phase, tokens, _ in times)}"
