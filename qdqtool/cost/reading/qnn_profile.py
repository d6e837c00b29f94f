"""``qnn-profile-viewer --output FILE.csv`` of Qualcomm's QNN SDK, and the file that onnxruntime's QNN provider writes alike.

The columns are those that microsoft/onnxruntime writes (qnn_backend_manager.cc, option ``profiling_file_path``) and that parsers
of the viewer's output want: ``Msg Timestamp, Message, Time, Unit of Measurement, Timing Source, Event Level, Event Identifier``;
lines may stand before them. Each run of a graph has its events; the host's time (``NETRUN``) names the graph and comes first."""

from __future__ import annotations

import re

from qdqtool.cost.reading.sources import Source, typical
from qdqtool.cost.rows import Row

NAME = "qnn-profile-viewer (CSV)"
_HEADER = "Msg Timestamp,"
_GRAPH = re.compile(r"Graph \d+: ?(.+)")
#: Which time of a run is taken: the first that there is, from the whole call to the accelerator alone.
_EVENTS = ("QNN (execute) time", "QNN accelerator (execute) time", "Accelerator (execute) time", "NETRUN")
#: Milliseconds of a unit.
_UNITS = {"US": 1e-3, "MICROSEC": 1e-3, "MS": 1.0, "NS": 1e-6}


def read(source: Source) -> list[Row] | None:
    """A row for each graph, the median of its runs without the first; None where the columns are others.

    Raises:
        ModelError: a time is no positive finite number, or there are cycles alone.
    """
    lines = source.text.splitlines(keepends=True)
    start = next((number for number, line in enumerate(lines) if line.lstrip().startswith(_HEADER)), None)
    if start is None:
        return None
    graph, cycles = "", False
    times: dict[str, dict[str, list[float]]] = {}
    for record in source.table("".join(lines[start:]), start):
        event, unit = record.text("event identifier"), record.text("unit of measurement").upper()
        if record.text("message") == "EXECUTE" and record.text("timing source") == "NETRUN":
            named = _GRAPH.fullmatch(event)
            graph, event = named[1] if named else "", "NETRUN"
        cycles = cycles or (unit == "CYCLES" and "(execute)" in event)
        if event in _EVENTS and unit in _UNITS:
            value = source.positive(record.get("time"), record.place, "Time") * _UNITS[unit]
            times.setdefault(graph, {}).setdefault(event, []).append(value)
    if not times and cycles:
        raise source.bad(
            "execute events", "count cycles, of an unknown clock", hint="profile with --profiling_level basic"
        )
    return [
        Row(
            id=f"{name} execute".strip(),
            model=name if len(times) == 1 else "",
            stack="",
            precision="",
            value=typical(next(events[event] for event in _EVENTS if event in events)),
            component="" if len(times) == 1 else name,
        )
        for name, events in times.items()
    ]
