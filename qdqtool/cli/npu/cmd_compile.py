"""Compile the QDQ model MODEL for an NPU: a model with programs, which the NPU's library runs without Python."""

from __future__ import annotations

from qdqtool.cli.commands import command_of
from qdqtool.cli.render import Out
from qdqtool.cli.tables.compiling import run_lowering
from qdqtool.verbs.npu.compile import Compile


@command_of(Compile)
def compile(out: Out, asked: Compile) -> None:
    run_lowering(out, asked, "compiling")


command = compile
