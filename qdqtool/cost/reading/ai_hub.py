"""``perf.yaml`` of qualcomm/ai-hub-models.

Read in the class ``QAIHMModelPerf`` that reads and writes it. Of 2025 and later: ``precisions`` → ``components`` →
``performance_metrics`` by device and runtime; language models in ``llm_metrics``, before that in the details themselves. Of 2024:
``models`` with a list of ``performance_metrics``, each with ``reference_device_info``; times in µs, ``null`` of a failed job.

The least time to the first token is that of one chunk of the prompt; the largest is computed from it, and not taken."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import yaml
from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.errors import ModelError
from qdq_passes.numerics.documents import look_through

from qdqtool.cost.reading.sources import Json, Source, mapping
from qdqtool.cost.rows import Row

NAME = "AI Hub's perf.yaml"
#: Safe, both. libyaml's, where PyYAML was built with it: twenty times faster.
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_DEEPEST, _MOST_EVENTS = 32, 1_000_000
#: A number of so many characters takes quadratic time.
_LONG_NUMBER = re.compile("[-+0-9._:xa-fA-F]{65,}")
#: Tokens of a chunk of a prompt: what AI Hub exports language models with.
_CHUNK = 128
#: Runtimes of 2024, by their later names.
_RUNTIMES = {
    "torchscript_onnx_tflite": "tflite", "torchscript_onnx_qnn": "qnn_dlc", "torchscript_onnx": "onnx", "qnn": "qnn_dlc",
}  # fmt: skip


@dataclass(frozen=True)
class Entry:
    """One job: what ran where, and its ``details``."""

    component: str
    precision: str
    device: str
    chip: str
    runtime: str
    details: Json

    @property
    def name(self) -> str:
        """As reports call it."""
        return " ".join(part for part in (self.component, self.precision, self.device, self.runtime) if part)


def read(source: Source) -> list[Row] | None:
    """A row for each component, device and runtime, two for each context of a language model; None where it is another file.

    Raises:
        ModelError: no YAML, with anchors or tags, or a time that is no positive finite number; the message names the entry.
    """
    if source.is_json or "performance_metrics:" not in source.text:
        return None
    document = mapping(_document(source))
    entries = list(_entries(document))
    alone = len({entry.component for entry in entries}) == 1
    return [row for entry in entries for row in _rows(source, entry, alone)]


def _document(source: Source) -> Json:
    """The YAML document: plain values, neither deep nor shared, so that a small file stays small."""
    try:
        depth = count = 0
        for event in yaml.parse(source.text, Loader=_LOADER):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > _DEEPEST:
                raise ValueError("nested too deeply")
            if (count := count + 1) > _MOST_EVENTS:
                raise ValueError(f"more than {_MOST_EVENTS:,} values")
            if isinstance(event, yaml.ScalarEvent) and _is_refused(event.value):
                raise ValueError(f"{event.value[:20]!r} is not read: a number of too many digits, or a merge")
            if getattr(event, "anchor", None) or getattr(event, "tag", None):
                raise ValueError("anchors and tags are not read")
        found: Json = yaml.load(source.text, Loader=_LOADER)
        look_through(found)
        return found
    except (yaml.YAMLError, ValueError, OverflowError, LookupError) as error:
        said = " ".join(str(error).split())
        raise ModelError(f"is no YAML as it is read ({said})", where=source.path, hint="write it again") from error


def _is_refused(scalar: str) -> bool:
    return scalar == "<<" or _LONG_NUMBER.fullmatch(scalar) is not None


def _entries(document: Mapping[str, Json]) -> Iterator[Entry]:
    for precision, part in mapping(document.get("precisions")).items():
        for component, details in mapping(mapping(part).get("components")).items():
            own = mapping(details).get("precision") or precision
            for device, runtimes in mapping(mapping(details).get("performance_metrics")).items():
                for runtime, job in mapping(runtimes).items():
                    yield Entry(str(component), str(own), str(device), "", str(runtime), job)
    models = document.get("models")
    for model in map(mapping, models if isinstance(models, list) else [models]):
        metrics = model.get("performance_metrics")
        for metric in map(mapping, metrics if isinstance(metrics, list) else []):
            board = mapping(metric.get("reference_device_info"))
            device, chip = (str(board.get(key) or "") for key in ("name", "chipset"))
            for runtime, job in metric.items():
                if {"inference_time", "llm_metrics"} & set(mapping(job)):
                    precision = str(mapping(job).get("precision") or "")
                    yield Entry(str(model.get("name") or ""), precision, device, chip, str(runtime), job)


def _elsewhere(details: Mapping[str, Json]) -> int:
    """Operators on the GPU and the CPU: ``layer_counts``, before 2025 ``layer_info``."""
    counts, before = mapping(details.get("layer_counts")), mapping(details.get("layer_info"))
    found = [
        *(counts.get(unit) for unit in ("gpu", "cpu")),
        *(before.get(f"layers_on_{unit}") for unit in ("gpu", "cpu")),
    ]
    return sum(count for count in found if isinstance(count, int) and count > 0)


def _rows(source: Source, entry: Entry, alone: bool) -> Iterator[Row]:
    """The rows of a job; none where it failed. ``alone``: the file has no other component."""
    details = mapping(entry.details)
    common: dict[str, Any] = {
        "model": entry.component if alone else "",
        "component": "" if alone else entry.component,
        "stack": _RUNTIMES.get(entry.runtime, entry.runtime),
        "precision": entry.precision,
        "device": entry.device,
        "chip": entry.chip,
    }
    for key, factor in (("inference_time_milliseconds", 1.0), ("inference_time", 1e-3)):
        if details.get(key) not in (None, "null"):
            value = source.positive(details[key], entry.name, key) * factor
            yield Row(id=entry.name, value=value, off_npu=_elsewhere(details), **common)
            break
    listed = details.get("llm_metrics") or details
    for metrics in map(mapping, listed if isinstance(listed, list) else [listed]):
        length = metrics.get("context_length")
        ctx = round(source.positive(length, entry.name, "context_length")) if length else 0
        name = f"{entry.name}{f' {ctx}' if ctx else ''}"
        for key, factor in (("time_to_first_token_range_milliseconds", 1.0), ("time_to_first_token_range", 1e-3)):
            if (least := mapping(metrics.get(key)).get("min")) not in (None, "null", 0):
                value = source.positive(least, name, key) * factor
                yield Row(id=f"{name} prefill", value=value, phase="prefill", seq_len=_CHUNK, ctx=ctx, **common)
        if (speed := metrics.get("tokens_per_second")) not in (None, "null"):
            value = source.positive(speed, name, "tokens_per_second")
            form: dict[str, Any] = {"unit": "tok/s", "metric": "throughput", "seq_len": ctx, "ctx": ctx}
            yield Row(id=f"{name} decode", value=value, phase="decode", **form, **common)
