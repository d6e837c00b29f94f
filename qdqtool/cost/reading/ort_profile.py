"""onnxruntime's profile (``SessionOptions.enable_profiling``): Chrome trace events, ``model_run`` for each run, ``dur`` in µs.

Read in a profile that onnxruntime wrote here (1.23 and later); a document with ``traceEvents`` is taken as well. The row is the
median of the runs without the first. The time is the session's, of all its providers, and holds what profiling itself costs."""

from __future__ import annotations

from collections import Counter

from qdqtool.cost.reading.sources import Source, mapping, typical
from qdqtool.cost.rows import Row

NAME = "onnxruntime profile (JSON)"


def read(source: Source) -> list[Row] | None:
    """One row, or None where the document is no list of events.

    Raises:
        ModelError: no run among the events, or a duration that is no positive finite number.
    """
    document = source.document
    found = mapping(document).get("traceEvents", document)
    events = [mapping(item) for item in found] if isinstance(found, list) else []
    if not any({"ph", "ts", "name"} <= set(event) for event in events):
        return None
    runs = [(number, event) for number, event in enumerate(events, 1) if event.get("name") == "model_run"]
    if not runs:
        raise source.bad(
            "events", "no model_run among them", hint="profile a session of onnxruntime that runs the model"
        )
    times = [source.positive(event.get("dur"), f"event {number}", "dur") / 1000 for number, event in runs]
    providers: Counter[str] = Counter()
    for event in events:
        duration = event.get("dur")
        if event.get("cat") == "Node" and isinstance(duration, int | float):
            providers[str(mapping(event.get("args")).get("provider") or "")] += round(duration)
    most = min(providers, key=lambda name: (-providers[name], name), default="").removesuffix("ExecutionProvider")
    stack = f"onnxruntime {most}".strip()
    return [Row(id="model_run", model="", stack=stack, precision="", value=typical(times))]
