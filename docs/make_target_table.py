"""Writes the table of docs/reference/targets.md, what every target says: `python docs/make_target_table.py`."""

from __future__ import annotations

from pathlib import Path

import onnx_ir as ir

from qdqtool.targets.cost import Figure
from qdqtool.targets.loading import TARGETS, load_target
from qdqtool.targets.target import Target

PAGE = Path(__file__).parent / "reference" / "targets.md"
START, END = "<!-- table -->\n", "<!-- end of table -->\n"
WIDE = (ir.DataType.INT16, ir.DataType.UINT16)
FOUR = (ir.DataType.INT4, ir.DataType.UINT4)


def table() -> str:
    """Facts by rows, targets by columns, in Markdown."""
    chips = [load_target(name) for name in sorted(TARGETS.names())]
    rows = [[key, *cells] for key, *cells in zip(*(("", *facts(chips[0])), *(column(c) for c in chips)), strict=True)]
    head, *body = rows
    lines = [head, ["---"] * len(head), *body]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def column(chip: Target) -> list[str]:
    """Heading and cells of one target."""
    return [f"`{chip.name}`", *facts(chip).values()]


def facts(chip: Target) -> dict[str, str]:
    """Row → what the target says there."""
    sums = chip.arithmetic
    has_integers = any(engine.kind == "int" for engine in chip.engines)
    wide = any(
        dtype in WIDE for rule in chip.rules for s in rule.schemes if s.compute == "integer" for dtype in s.activations
    )
    return {
        "chips": f"{chip.family or 'no one chip'} {chip.architecture}".strip(),
        "a refused node costs": {"node": "itself", "region": "its region", "whole-model": "the whole model"}[
            chip.policy
        ],
        "preset where none is said": f"`{chip.legalization.preset}`" if chip.legalization.preset else "none",
        "symbolic dimensions": chip.limits.symbolic,
        "integers": f"{'8 and 16' if wide else '8'} bits" if has_integers else "none",
        "4-bit weights": four_bits(chip),
        "floats": sums.float_precision if computes_floats(chip) else "the CPU",
        "requantize": f"{sums.requantize}, {sums.rounding}" if has_integers else "none",
        "functions of 16 bits": sums.wide_functions if wide else "none",
        "traps": str(len(chip.traps)),
        "addressable": cell(chip.memory.addressable_bytes, 1e9, "GB"),
        "beside the engine": cell(chip.memory.tile_bytes, 1e6, "MB"),
        "tile": "×".join(map(str, chip.memory.tile.value)) + mark(chip.memory.tile),
        "8-bit TMAC/s": speed(chip, "8"),
        "16-bit TMAC/s": speed(chip, "16") if wide else "none",
        "float TMAC/s": speed(chip, "float") if computes_floats(chip) else "the CPU",
        "weights by block": cell(chip.cost.blocked_penalty, 1, "× slower")
        if chip.cost.blocked_penalty.value > 1
        else "as fast",
        "DRAM": cell(chip.cost.dram_bytes_per_cycle, 1e3 / chip.cost.clock_mhz.value, "GB/s"),
        "a call": cell(chip.cost.dispatch_us, 1, "µs"),
        "CPU, GMAC/s": cell(chip.cost.cpu_macs_per_us, 1e3, ""),
    }


def four_bits(chip: Target) -> str:
    """How products take weights of 4 bits."""
    found = [
        s
        for rule in chip.rules
        if "MatMul" in rule.types
        for s in rule.schemes
        if any(dtype in FOUR for dtype in s.weights)
    ]
    if not found:
        return "none"
    return "on integers" if any(s.compute == "integer" for s in found) else "unpacked to floats"


def computes_floats(chip: Target) -> bool:
    """Whether it has an engine for floats."""
    return any(engine.kind == "float" for engine in chip.engines)


def speed(chip: Target, key: str) -> str:
    """Multiply-accumulates in 10^12 a second."""
    return cell(chip.cost.macs_per_cycle[key], 1e6 / chip.cost.clock_mhz.value, "")


def cell(figure: Figure[float], unit: float, name: str) -> str:
    """A figure in ``unit``, with the first letter of its confidence."""
    return f"{figure.value / unit:.3g} {name}".strip() + mark(figure)


def mark(figure: Figure[float] | Figure[tuple[int, int, int]]) -> str:
    """Its confidence."""
    return f" ({figure.confidence[0]})"


def page(text: str) -> str:
    """``text`` with the table written anew."""
    before, _, rest = text.partition(START)
    return f"{before}{START}{table()}{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
