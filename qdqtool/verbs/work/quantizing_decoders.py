"""`quantize` of a folder that `split` wrote: language models meet quantization."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import onnx_ir as ir
from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.decoder.look.record import DECODER
from qdq_passes.errors import ModelError
from qdq_passes.graph.edit import copy_model
from qdq_passes.pipeline.pipeline import Hook
from qdq_passes.qdq.look.weighted_layers import weighted_layers

from qdqtool.calibrate.ranges import Ranges
from qdqtool.calibrate.statistics import Statistics, combined
from qdqtool.io.files.artifacts import sha256_of_json, write_json
from qdqtool.io.files.progress import Warn, pass_on, stage
from qdqtool.io.models.load import load
from qdqtool.io.models.working import provenance_of
from qdqtool.lints.find import concat_warnings
from qdqtool.llm.folder.manifest import Manifest, read_manifest, refuse_damaged
from qdqtool.llm.folder.rewriting import refuse_output, write_graphs
from qdqtool.llm.run.calibration import Texts, Windows
from qdqtool.quantization.calibrating import Calibrator, observed_names, without_angles
from qdqtool.quantization.plan import RANGES, Plan
from qdqtool.quantization.quantizing import Quantization, prepare, quantize_model
from qdqtool.quantization.recovery import STATISTICS, Recovering, learns
from qdqtool.quantization.reports import grouped, target_refusals
from qdqtool.quantization.shared_tensors import disagreements, share_names, with_one_mask
from qdqtool.record.record import Record
from qdqtool.targets.loading import load_target
from qdqtool.targets.target import Target
from qdqtool.verbs.work.bounds.scale_moves import costly_moves
from qdqtool.verbs.work.folder_calibration import GraphFeeds, calibrate_folder, needs_statistics, recover_folder
from qdqtool.verbs.work.quantizing import Quantized, begun, recovering_for
from qdqtool.verbs.work.records import quantization_record
from qdqtool.verbs.work.token_ids import texts_of
from qdqtool.workers.cluster import open_workers

if TYPE_CHECKING:
    from qdqtool.verbs.quantize import Quantize


@dataclass(frozen=True, kw_only=True)
class QuantizedFolder(Quantized):
    """A quantized folder and the story of it; as a `Quantized`, that of its first graph, with the ranges of all.

    Args:
        folder: where it was written; None for graphs in memory.
        manifest: as it was written, else that of the source.
        graphs: file name → what was done.
        kv_cache: type of the cache.
        seconds: wall time, calibration included.
    """

    folder: str | None
    manifest: Manifest
    graphs: Mapping[str, Quantization]
    kv_cache: str
    seconds: float

    @property
    def ranges(self) -> Ranges:
        """What all graphs share."""
        return self.quantization.ranges

    @property
    def records(self) -> dict[str, Record]:
        """Graph → what is known of its tensors and nodes."""
        return {name: quantization_record(done) for name, done in self.graphs.items()}

    def to_json(self) -> dict[str, Any]:
        """JSON-ready: the keys of `quantize`, counts of all graphs together; then the same per graph."""
        first = next(iter(self.graphs.values()))
        graphs = list(self.graphs.values())
        data = {
            "folder": self.folder,
            "preset": first.plan.preset.name,
            "method": self.ranges.method,
            "samples": self.ranges.samples,
            "kv_cache": self.kv_cache,
            "quantized_nodes": sum(each.quantized_nodes for each in graphs),
            "excluded_nodes": list(dict.fromkeys(name for each in graphs for name, _ in each.excluded)),
            "pairs": sum(each.pairs for each in graphs),
            "ranges_sha256": self.ranges.sha256,
            "graphs": [{"model": name, **done.to_json()} for name, done in self.graphs.items()],
            "files": sorted(self.manifest.files),
            "seconds": round(self.seconds, 3),
        }
        if self.target_refusals is not None:
            data["target_refusals"] = [{"node": node, "reason": reason} for node, reason in self.target_refusals]
        return data if self.sought is None else {**data, "sought": self.sought.to_json()}


def quantized_folder(asked: Quantize) -> QuantizedFolder:
    """``asked`` of a folder: every graph quantized with the same encodings, and such a folder written again.

    A tensor has the same name in all graphs, and the same encoding, made of what all graphs held of it.

    Raises:
        UsageError: no data; a selector matches nothing in any graph; bad output.
        ModelError: the folder is damaged; graphs would have different encodings of one tensor.
    """
    start, hooks = time.perf_counter(), tuple(asked.hooks)
    asked = replace(asked, hooks=hooks)
    job, given = begun(asked)
    assert not isinstance(asked.model, ir.Model)
    folder = asked.model
    manifest = read_manifest(folder)
    old = refuse_output(folder, asked.output, overwrite=asked.overwrite) if asked.output is not None else frozenset()
    refuse_damaged(folder, progress=stage(asked.progress, "hashing", None))
    graphs = graphs_of(folder, manifest)
    plans, prepared = prepared_graphs(graphs, job, allow_empty=asked.allow_empty, hooks=hooks, warn=asked.warn)
    recovering = recovering_for(asked)
    texts = Texts.none()
    if (recovering.given is None and needs_statistics(job)) or (given is None and _observes(plans, prepared)):
        texts = texts_of(
            asked.data, manifest, graphs, asked.tokenizer or folder, samples=asked.samples, seed=asked.seed, warn=asked.warn
        )  # fmt: skip
    statistics = recover_folder(folder, prepared, job, recovering, texts, hooks=hooks, progress=asked.progress)
    names = {file: observed_names(model, plans[file]) for file, model in prepared.items()}
    if given is None and any(names.values()):
        seen = {file: job.seen(model, names[file]) for file, model in prepared.items()}
        with open_workers(asked.jobs, asked.cluster, warn=asked.warn) as workers:
            given = calibrate_folder(
                folder, seen, names, texts, job.method, job.method_options, workers=workers,
                statistics=asked.report is not None, fingerprint=sha256_of_json(dict(manifest.files)),
                progress=stage(asked.progress, "calibrating", None), warn=asked.warn,
            )  # fmt: skip
    shared = given or Ranges(method=job.method, samples=0, tensors={})
    plans = with_one_mask(plans, prepared, shared.bound)
    del prepared
    if learns(job.materialise) and not Recovering(given=statistics).is_learned(job.materialise):
        statistics = _learned(asked, graphs, plans, shared, names, statistics, texts)
        if recovering.file is not None:
            statistics.write(recovering.file)
    done = _alike(asked, graphs, plans, shared, names, statistics)
    written = _written(asked, folder, manifest, done, shared, statistics, old)
    unfit = None if asked.target is None else _refused(done, load_target(asked.target))
    pass_on(grouped(unfit or ()), asked.warn)
    graphs_done = {file: replace(each, ranges=shared) for file, each in done.items()}
    first = next(iter(graphs_done.values()))
    result = QuantizedFolder(
        model=first.model, quantization=first, comparison=None, source_sha256=manifest.source_sha256,
        target_refusals=unfit, folder=None if asked.output is None else os.fspath(asked.output), manifest=written,
        graphs=graphs_done, kv_cache=asked.kv_cache, seconds=time.perf_counter() - start,
    )  # fmt: skip
    if asked.report is not None:
        records = {name: record.to_json() for name, record in result.records.items()}
        payload = {**result.to_json(), "records": records}
        write_json(asked.report, kind="quantization", version=1, payload=payload, overwrite=asked.overwrite)
    return result


def _learned(
    asked: Quantize,
    graphs: Mapping[str, ir.Model],
    plans: Mapping[str, Plan],
    shared: Ranges,
    names: Mapping[str, Sequence[str]],
    before: Statistics | None,
    texts: Texts,
) -> Statistics:
    """``before``, and what is learned of each layer in the graph for most tokens that has it; all graphs take it from there."""
    assert not isinstance(asked.model, ir.Model)
    tokens = {part.file: model.seq_len for model in read_manifest(asked.model).models for part in model.parts}
    found, known = before, set[str]()
    for file in sorted(graphs, key=lambda file: -tokens[file]):
        layers = {layer.name for layer in weighted_layers(graphs[file])}
        if layers <= known:
            continue
        known |= layers
        done = quantize_model(
            copy_model(graphs[file]), plans[file], feeds=GraphFeeds(Windows(asked.model, texts), file),
            calibrator=Calibrator(_of(shared, names[file])), hooks=asked.hooks,
            recovering=Recovering(given=before, progress=asked.progress),
        )  # fmt: skip
        assert done.statistics is not None
        found = done.statistics if found is None else combined(done.statistics, found)
    assert found is not None
    return found


def _alike(
    asked: Quantize,
    graphs: Mapping[str, ir.Model],
    plans: Mapping[str, Plan],
    shared: Ranges,
    names: Mapping[str, Sequence[str]],
    statistics: Statistics | None,
) -> dict[str, Quantization]:
    """All ``graphs`` quantized, a second time those that would have an encoding of their own for a tensor of the others."""
    told = None if asked.warn is None else _Once(asked.warn)

    def of(file: str, model: ir.Model, plan: Plan) -> Quantization:
        ranges, recovering = _of(shared, names[file]), Recovering(given=statistics)
        quantized = quantize_model(
            model, plan, calibrator=Calibrator(ranges), recovering=recovering, hooks=asked.hooks, warn=told
        )
        pass_on([*concat_warnings(model, ranges.bound), *costly_moves(quantized)], told)
        return quantized

    done: dict[str, Quantization] = {}
    for number, (file, model) in enumerate(graphs.items()):
        if asked.progress is not None:
            asked.progress("quantizing", number, len(graphs))
        done[file] = of(file, model, plans[file])
    again = disagreements({file: each.model for file, each in done.items()})
    assert not isinstance(asked.model, ir.Model)
    for file, model in (graphs_of(asked.model, read_manifest(asked.model)) if again else {}).items():
        if file in again:
            done[file] = of(file, model, plans[file].overriding(again[file]))
    _refuse_different(done)
    return done


def _written(
    asked: Quantize,
    folder: str | os.PathLike[str],
    manifest: Manifest,
    done: Mapping[str, Quantization],
    shared: Ranges,
    statistics: Statistics | None,
    old: frozenset[str],
) -> Manifest:
    """The manifest as it is written with the graphs; that of the source where there is no output."""
    if asked.output is None:
        return manifest
    first = next(iter(done.values()))
    about = {
        "preset": first.plan.preset.name, "method": shared.method, "ranges_sha256": shared.sha256, "kv_cache": asked.kv_cache,
    }  # fmt: skip
    inputs = {RANGES: shared.sha256} | ({STATISTICS: statistics.sha256} if statistics is not None else {})
    entries = {
        file: provenance_of(str(each.plan.pipeline), manifest.files[file], inputs, each.passes)
        for file, each in done.items()
    }
    return write_graphs(
        folder, asked.output, manifest, {file: each.model for file, each in done.items()}, old=old, quantization=about,
        provenance=None if asked.no_provenance else entries,
    )  # fmt: skip


def planned_for_folder(
    folder: str | os.PathLike[str], job: Plan, *, allow_empty: bool = False, warn: Warn | None = None
) -> dict[str, Plan]:
    """``job`` as `quantized_folder` would run it on each graph of ``folder``, by the name of its file.

    Raises:
        UsageError: a selector matches nothing in any graph.
    """
    return prepared_graphs(graphs_of(folder, read_manifest(folder)), job, allow_empty=allow_empty, warn=warn)[0]


def graphs_of(folder: str | os.PathLike[str], manifest: Manifest) -> dict[str, ir.Model]:
    """The graphs of ``folder`` by file, each with the record of the decoder that it is, or is a part of; a name in them is one
    tensor in all of them."""
    found: dict[str, ir.Model] = {}
    for model in manifest.models:
        for part in model.parts:
            found[part.file] = load(os.path.join(os.fspath(folder), part.file))
            DECODER.set(found[part.file].graph, model.decoder)
    share_names(found)
    return found


class _Once:
    """Passes on each warning once."""

    def __init__(self, warn: Warn) -> None:
        self._warn, self._told = warn, set[str]()

    def __call__(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            self._warn(text)


def prepared_graphs(
    graphs: Mapping[str, ir.Model],
    job: Plan,
    *,
    allow_empty: bool = False,
    hooks: Sequence[Hook] = (),
    warn: Warn | None = None,
) -> tuple[dict[str, Plan], dict[str, ir.Model]]:
    """Of each graph: the plan, without selectors that do not concern it; the prepared graph.

    Raises:
        UsageError: a selector matches nothing in any graph.
    """
    plans, prepared, missed = {}, {}, []
    for file, model in graphs.items():
        told: list[str] = []
        prepared[file] = copy_model(model)
        plans[file] = prepare(prepared[file], job, allow_empty=True, hooks=hooks, warn=told.append)[0]
        missed.append(told)
    heads = [{_head(text) for text in told} for told in missed]  # what is nearest to a selector differs by graph
    lost = [text for text in missed[0] if all(_head(text) in told for told in heads)]
    if lost and not allow_empty:
        # the same refusal as for one model, with its hint
        prepare(copy_model(next(iter(graphs.values()))), job, allow_empty=False, hooks=hooks)
    pass_on(lost, warn)
    return {file: without_angles(plans[file], model) for file, model in prepared.items()}, prepared


def _head(text: str) -> str:
    """What a message says, without the way out."""
    return text.partition("; ")[0]


def _observes(plans: Mapping[str, Plan], prepared: Mapping[str, ir.Model]) -> bool:
    """Whether a range of any tensor is needed."""
    return any(observed_names(model, plans[file]) for file, model in prepared.items())


def _of(ranges: Ranges, names: Sequence[str]) -> Ranges:
    """What of the shared ``ranges`` one graph needs."""
    wanted = set(names)
    return replace(
        ranges,
        tensors={name: found for name, found in ranges.tensors.items() if name in wanted},
        states={name: state for name, state in ranges.states.items() if name in wanted},
        statistics={name: state for name, state in ranges.statistics.items() if name in wanted},
        unobserved=tuple(name for name in ranges.unobserved if name in wanted),
    )


def _refused(done: Mapping[str, Quantization], target: Target) -> tuple[tuple[str, str], ...]:
    """(node, reason) of what ``target`` does not take, of all graphs, each once."""
    return tuple(dict.fromkeys(refusal for each in done.values() for refusal in target_refusals(each.model, target)))


def _refuse_different(done: Mapping[str, Quantization]) -> None:
    """Refuse graphs that have a tensor in different encodings: they share weights and a cache.

    Raises:
        ModelError: they do.
    """
    for file, said in disagreements({file: each.model for file, each in done.items()}).items():
        raise ModelError(
            f"has another encoding in {file} than in the graphs before it", where=next(iter(said)),
            hint="a pass of the preset decides by the graph alone: leave it out, or name the tensor with --exclude",
        )  # fmt: skip
