"""List, insert and remove QuantizeLinear/DequantizeLinear pairs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from qdqtool.cli.main import SubCommands
from qdqtool.cli.options import allow_empty_option, command, load_model, model_argument, output_options, select_option
from qdqtool.cli.render import Out, Precise, say, table

if TYPE_CHECKING:
    import onnx_ir as ir
    from qdq_passes.analysis.qdq_pairs import Pair


@click.group(name="qdq", cls=SubCommands)
def qdq() -> None:
    """List, insert and remove QuantizeLinear/DequantizeLinear pairs."""


@command(qdq, name="list")
@model_argument
@select_option
@allow_empty_option
def list_pairs(out: Out, model: str, select: tuple[str, ...], allow_empty: bool) -> None:
    """List every QDQ pair of MODEL and every stored integer weight: encoding, position, nodes."""
    from qdq_passes.analysis.qdq_pairs import is_named, qdq_pairs
    from qdq_passes.core.select import Selector
    from qdq_passes.core.select import select as evaluate

    graph = load_model(model)
    pairs = _in_reading_order(graph, qdq_pairs(graph))
    if select:
        hit = evaluate(graph, Selector.of(*select), allow_empty=allow_empty)
        nodes, values = set(hit.nodes), set(hit.values)
        pairs = [p for p in pairs if is_named(p, nodes, values)]
    rows = [_pair(p) for p in pairs]
    columns = ("tensor", "kind", "dtype", "scale", "zero_point", "position", "axis")

    def render() -> None:
        if rows:
            table(columns, [[_short(row[c]) for c in columns] for row in rows])
        else:
            say("no QDQ pairs" + (" there" if select else ""))

    out.result({"pairs": rows}, render)


def _in_reading_order(model: ir.Model, pairs: list[Pair]) -> list[Pair]:
    """By the first node that reads the dequantized value; what a node reads in the order of its inputs."""
    from qdq_passes.analysis.uses import all_nodes

    place = {node: number for number, node in enumerate(all_nodes(model))}

    def first_use(pair: Pair) -> tuple[int, int]:
        return min(((place[use.node], use.idx) for use in pair.output.uses()), default=(len(place), 0))

    return sorted(pairs, key=first_use)


def _pair(pair: Pair) -> dict[str, Any]:
    """The keys of the command's contract."""
    from qdq_passes.numerics.encoding import nested

    encoding = pair.encoding
    data = encoding.to_json() if encoding is not None else {}
    position = encoding.position if encoding is not None else None
    return {
        "tensor": pair.tensor,
        "initializer": pair.stored.name if pair.stored is not None else None,
        "dtype": data.get("dtype"),
        "scale": data.get("scale"),
        "zero_point": data.get("zero_point"),
        "axis": data.get("axis"),
        "block_size": data.get("block_size") or None,
        "position": nested(position, encoding.shape) if position is not None and encoding is not None else None,
        "kind": pair.kind,
        "node_q": pair.q.name if pair.q is not None else None,
        "node_dq": pair.dq.name,
    }


def _short(value: object) -> object:
    """A cell; a list of three and more as its length and its extremes."""
    if isinstance(value, float):
        return Precise(value)
    if not isinstance(value, list) or len(value) < 3:
        return value
    numbers = sorted(_flat(value))
    low, high = f"{numbers[0]:.6g}", f"{numbers[-1]:.6g}"
    return f"{len(numbers)}: {low}" if low == high else f"{len(numbers)}: {low}..{high}"


def _flat(value: Any) -> list[Any]:
    return [x for item in value for x in _flat(item)] if isinstance(value, list) else [value]


@command(qdq, name="insert")
@model_argument
@output_options
@select_option
@allow_empty_option
@click.option("--scale", "scales", multiple=True, type=float, metavar="S", help="Scale; repeat for per-axis.")
@click.option("--zero-point", "zero_points", multiple=True, type=int, metavar="Z", help="Zero point; 0 by default.")
@click.option("--dtype", default="int8", show_default=True, metavar="TYPE", help="Storage type.")
@click.option("--axis", type=int, metavar="N", help="Axis of per-axis scales.")
@click.option(
    "--ranges", metavar="FILE", help="Choose power-of-two int8 encodings from these ranges instead of --scale."
)
@click.option(
    "--weights", type=click.Choice(["qdq", "dq"]), default="qdq", help="Pair on the float weight, or stored integers."
)
def insert(
    out: Out,
    model: str,
    output: str,
    overwrite: bool,
    no_provenance: bool,
    select: tuple[str, ...],
    allow_empty: bool,
    scales: tuple[float, ...],
    zero_points: tuple[int, ...],
    dtype: str,
    axis: int | None,
    ranges: str | None,
    weights: str,
) -> None:
    """Insert QDQ pairs on the selected tensors, with an encoding given or chosen from ranges."""
    from qdq_passes.core.pipeline import parse_pipeline
    from qdq_passes.core.pipeline_text import format_pass, make_pass
    from qdq_passes.errors import UsageError

    from qdqtool.calibrate.ranges import Ranges
    from qdqtool.cli.saving import run_and_save, show_report

    if bool(scales) == bool(ranges):
        raise UsageError("give either --scale or --ranges", where="qdq insert")
    options: dict[str, Any] = {"weights": weights}
    if select:
        options["select"] = _matching(out, model, select, allow_empty)
    elif scales:
        raise UsageError("--scale without --select", where="qdq insert", hint="say which tensors: --select tensor:NAME")
    found = Ranges.read(ranges) if ranges else None
    text = ""
    if scales:
        options |= {"scale": list(scales), "zero_point": list(zero_points), "dtype": dtype}
        options |= {"axis": axis} if axis is not None else {}
    else:
        text = "annotate-encodings{encodings=@ranges},"
    pipeline = parse_pipeline(text + format_pass(make_pass("insert-qdq", options)))
    saved = run_and_save(
        out, model, output, pipeline, overwrite=overwrite, no_provenance=no_provenance, ranges=found,
        inputs={"ranges": found.bound} if found else {}, ranges_file=ranges,
    )  # fmt: skip
    show_report(out, saved)


@command(qdq, name="remove")
@model_argument
@output_options
@select_option
@click.option("--all", "everything", is_flag=True, help="Every pair and every stored integer weight.")
@click.option("--keep-weights", is_flag=True, help="Leave weights and biases quantized.")
@allow_empty_option
def remove(
    out: Out,
    model: str,
    output: str,
    overwrite: bool,
    no_provenance: bool,
    select: tuple[str, ...],
    everything: bool,
    keep_weights: bool,
    allow_empty: bool,
) -> None:
    """Remove QDQ pairs, leaving the float value; stored integers are dequantized."""
    from qdq_passes.core.pipeline import Pipeline
    from qdq_passes.core.pipeline_text import make_pass
    from qdq_passes.errors import UsageError

    from qdqtool.cli.saving import run_and_save, show_report

    if bool(select) == everything:
        raise UsageError("give either --select or --all", where="qdq remove")
    options: dict[str, Any] = {"keep_weights": keep_weights} if keep_weights else {}
    if select:
        options["select"] = _matching(out, model, select, allow_empty)
    saved = run_and_save(
        out,
        model,
        output,
        Pipeline((make_pass("remove-qdq", options),)),
        overwrite=overwrite,
        no_provenance=no_provenance,
    )
    show_report(out, saved)


def _matching(out: Out, model: str, texts: tuple[str, ...], allow_empty: bool) -> list[str]:
    """``texts``; with ``allow_empty`` those that match something, or one that never does."""
    if not allow_empty:
        return list(texts)
    from qdq_passes.core.select import NONE, Selector, select
    from qdq_passes.errors import UsageError

    graph, kept = load_model(model), []
    for text in texts:
        try:
            select(graph, Selector.of(text))
            kept.append(text)
        except UsageError as error:
            out.warn(str(error))
    return kept or list(NONE.texts)


command = qdq
