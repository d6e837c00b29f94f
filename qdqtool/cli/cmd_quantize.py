"""Quantize the float MODEL: clean, fuse, calibrate on --data, insert QDQ pairs."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.errors import UsageError

from qdqtool.cli.commands import command_of, ran
from qdqtool.cli.options import text
from qdqtool.cli.render import Out, listed, megabytes, plural, say, table
from qdqtool.options import WRITTEN, option
from qdqtool.verbs.goals.quantize_to_goal import QuantizeToGoal
from qdqtool.verbs.quantize import Quantize

#: Tensors, and converted nodes, shown in the summary.
NOISIEST = 5
#: Rows shown of its other tables.
LISTED = 12

if TYPE_CHECKING:
    from qdqtool.quantization.plan import Plan
    from qdqtool.verbs.work.quantizing import Quantized


@dataclass(frozen=True, kw_only=True)
class QuantizeCommand(QuantizeToGoal):
    """`QuantizeToGoal` as a command."""

    save_ranges: str | None = option(
        None,
        "Also write the ranges that were used.",
        value="FILE",
        use="file",
        recipe=False,
        before="report",
        section=WRITTEN,
    )
    print_pipeline: bool = option(
        False,
        "Print the pipeline that does the job; without --output stop there.",
        recipe=False,
        before="allow_findings",
        section=WRITTEN,
    )


@command_of(QuantizeCommand)
def quantize(out: Out, asked: QuantizeCommand) -> int | None:
    model = text(asked.model)
    if asked.print_pipeline and asked.output is None:
        _show_pipeline(out, asked)
        return None
    if asked.output is None:
        raise UsageError("no output", hint="give -o FILE, or --print-pipeline to see what would be done")
    output = text(asked.output)
    from qdqtool.io.models.hooks import Reproducer

    done = ran(out, replace(asked, hooks=(Reproducer(f"{output}.reproducer"),)), "quantizing")
    is_written = done.sought is None or done.sought.is_met
    if asked.save_ranges and is_written:
        done.quantization.ranges.write(asked.save_ranges, overwrite=asked.overwrite)
    if asked.print_pipeline and is_written and not out.as_json:
        say(_shown(asked, done.quantization.plan))
        return None
    for change in done.quantization.changes:
        out.detail(str(change))
    payload = {**done.to_json(), "output": output}
    found = done.sought
    if not is_written:
        payload["output"] = None

    def render() -> None:
        if found is not None:
            from qdqtool.cli.tables.goal import render_goal

            render_goal(payload["sought"])
        if payload["output"] is None:
            return
        if os.path.isdir(model):
            from qdqtool.cli.tables.quantized_folder import render_folder

            render_folder(payload, model, output)
        else:
            _render(payload, done, model, output, out.verbose)
        for bound in payload.get("missed", ()):
            say(f"failed: {bound}")

    out.result(payload, render)
    return 1 if payload["output"] is None or payload.get("missed") else None


def _show_pipeline(out: Out, asked: Quantize) -> None:
    """What would run, its selectors tried on the model, and nothing calibrated."""
    from qdqtool.cli.tables.quantized_folder import show_pipelines
    from qdqtool.verbs.work.quantizing import laid_under, planned_for
    from qdqtool.verbs.work.texts import is_text

    model, is_folder = text(asked.model), os.path.isdir(text(asked.model))
    asked = asked if asked.recipe is None or is_folder else laid_under(asked, asked.recipe)
    job = replace(asked, warn=out.warn).settled(is_text=is_text(asked.data)).plan()
    if is_folder:
        show_pipelines(out, model, job, allow_empty=asked.allow_empty)
        return
    job = planned_for(model, job, allow_empty=asked.allow_empty, warn=out.warn)
    shown = _shown(asked, job)
    out.result({"pipeline": shown, "method": job.method}, lambda: say(shown))


def _shown(asked: Quantize, job: Plan) -> str:
    """The text of all that runs; with ranges nothing is calibrated, and a folder is calibrated before any of its graphs."""
    is_calibrated = asked.ranges is None and not os.path.isdir(text(asked.model))
    return str(job.whole if is_calibrated else job.pipeline)


def _render(payload: dict[str, Any], done: Quantized, source: str, output: str, everything: bool) -> None:
    """The summary; of its tables with ``everything`` every row."""
    from qdqtool.cli.tables.saving import files_of, stored_bytes

    rows: list[tuple[str, object]] = [
        ("preset", payload["preset"]),
        ("method", _method(payload)),
        ("quantized nodes", str(payload["quantized_nodes"])),
        ("excluded nodes", str(len(payload["excluded_nodes"]))),
        ("QDQ pairs", str(payload["pairs"])),
        ("multiply-accumulates", _shares(payload["mac_shares"], payload["boundary_crossings"])),
    ]
    if done.comparison is not None:
        sqnr = payload["sqnr_db"]
        shown = "exact" if sqnr is None else f"{sqnr:.1f} dB"
        rows.append(
            (
                "SQNR of the worst output",
                f"{shown} on {plural(payload['judged_on']['samples'], 'sample')} {done.judged_on}".rstrip(),
            )
        )
    if done.placed is not None:
        rows.append((f"on {done.placed.target}", done.placed.text))
        rows += [("not taken", refusal.who) for refusal in done.placed.refusals if refusal.pulled]
    if done.quantization.choice:
        rows.append(("Sigmoid", done.quantization.choice))
    if payload["moves"]:
        rows.append(("positions moved", f"{len(payload['moves'])}, so that the chip can shift between them (-v)"))
    rows.append(("size", f"{megabytes(stored_bytes(source))} → {megabytes(stored_bytes(output))}{done.why_large}"))
    rows.append(("seconds", f"{payload['seconds']:.1f}"))
    table(("", ""), rows)
    most = None if everything else LISTED
    listed(("excluded node", "reason"), [(e["node"], e["reason"]) for e in payload["excluded"]], most)
    listed(("value that stays float", "reason"), [(r["tensor"], r["reason"]) for r in payload["refused"]], most)
    listed(("pair at an excluded node", "reason"), [(k["tensor"], k["reason"]) for k in payload["kept"]], most)
    listed(("converted node", "how"), [(c["node"], c["reason"]) for c in payload["conversions"]], most and NOISIEST)
    _render_tensors(payload["tensors"])
    say(f"wrote {files_of(output, source)}")


def _shares(shares: dict[str, float], crossings: int) -> str:
    """``98.2 % in 8 bit, 1.8 % in float, 4 boundary crossings``."""
    shown = [f"{share:.1%} in {name}{'' if name == 'float' else ' bit'}" for name, share in shares.items() if share]
    return ", ".join([*(shown or ["none"]), *([plural(crossings, "boundary crossing")] if crossings else [])])


def _method(payload: dict[str, Any]) -> str:
    if payload["method"] is None:
        return "none, activations stay float"
    return f"{payload['method']} over {plural(payload['samples'], 'sample')}"


def _render_tensors(tensors: list[dict[str, Any]]) -> None:
    """The noisiest tensors; all are in --report."""
    noisy = [t for t in tensors if t["sqnr_db"] is not None][:NOISIEST]
    if noisy:
        say()
        table(("noisiest tensor", "kind", "range", "position", "clipped", "SQNR dB"), [_noise(t) for t in noisy])


def _noise(tensor: dict[str, Any]) -> tuple[str, ...]:
    low, high = tensor["range"]
    position = tensor["position"]
    return (
        tensor["tensor"],
        tensor["kind"],
        f"{low:.4g} to {high:.4g}",
        "-" if position is None else str(position) if isinstance(position, int) else "per-axis",
        f"{tensor['clipped']:.2%}",
        f"{tensor['sqnr_db']:.1f}",
    )


command = quantize
