"""Write the QDQ model MODEL with the integer operators that an NPU computes, to look at or to run on the CPU."""

from __future__ import annotations

from qdqtool.cli.commands import command_of
from qdqtool.cli.render import Out
from qdqtool.cli.tables.compiling import run_lowering
from qdqtool.verbs.npu.lower import Lower


@command_of(Lower)
def lower(out: Out, asked: Lower) -> None:
    run_lowering(out, asked, "lowering")


command = lower
