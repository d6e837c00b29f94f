"""Hooks that write files: the model's text after each pass, and a reproducer when a pass fails."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import field

import onnx_ir as ir
from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.base import Change, Pass
from qdq_passes.errors import QdqError
from qdq_passes.graph.edit import copy_model
from qdq_passes.pipeline.hooks import QuietHook
from qdq_passes.pipeline.text import format_pass

from qdqtool.io.files.atomic import write_whole
from qdqtool.io.files.read import read_bytes
from qdqtool.io.models.load import SOURCE
from qdqtool.io.models.save import save


@dataclass
class DumpEach(QuietHook):
    """Write the text form of the model into ``folder`` before the first and after each pass: ``00-input.txt``…"""

    folder: str
    overwrite: bool = True
    _count: int = 0

    def before(self, pass_: Pass, model: ir.Model) -> None:
        """Write the input, once."""
        if self._count == 0:
            self._write("input", model)

    def after(self, pass_: Pass, model: ir.Model, changes: Sequence[Change]) -> None:
        """Write the state after ``pass_``."""
        self._write(type(pass_).name(), model)

    def _write(self, name: str, model: ir.Model) -> None:
        from qdq_passes.graph.dump import dump

        path = os.path.join(self.folder, f"{self._count:02d}-{name}.txt")
        write_whole(path, dump(model).encode(), overwrite=self.overwrite)
        self._count += 1


@dataclass
class Reproducer(QuietHook):
    """When a pass breaks: write the pipeline's input with its annotations, and the passes up to the broken one, into ``folder``.

    ``qdqtool opt FOLDER/input.onnx -p @FOLDER/pipeline.txt -o out.onnx`` then fails the same way. Errors of the user's making
    (exit code 2 or 3) leave nothing behind.

    Args:
        folder: made when a pass breaks.
        inputs: files behind the named inputs, copied along.
    """

    folder: str
    inputs: Mapping[str, str] = field(default_factory=dict)
    _input: ir.Model | None = None
    _passes: list[str] = field(default_factory=list)

    def before(self, pass_: Pass, model: ir.Model) -> None:
        """Keep the input (its tensors are shared, not copied)."""
        if self._input is None:
            self._input = copy_model(model)
        self._passes.append(format_pass(pass_))

    def on_error(self, pass_: Pass, model: ir.Model, error: Exception) -> None:
        """Write the reproducer and say where."""
        if self._input is None or getattr(error, "exit_code", 70) != 70:
            return
        command = "qdqtool opt input.onnx -p @pipeline.txt -o out.onnx"
        target = os.path.join(self.folder, "input.onnx")
        if os.path.realpath(self._input.meta.get(SOURCE, "")) == os.path.realpath(target):  # it is what failed
            error.add_note(f"reproducer in {self.folder}")
            return
        try:
            save(self._input, target, annotations=True)
            for name, file in self.inputs.items():
                write_whole(os.path.join(self.folder, f"{name}.json"), read_bytes(file))
                command += f" --{name} {name}.json"
            text = f"# {command}\n{','.join(self._passes)}\n"
            write_whole(os.path.join(self.folder, "pipeline.txt"), text.encode())
        except QdqError as failure:
            error.add_note(f"no reproducer: {failure}")
        else:
            error.add_note(f"reproducer in {self.folder}")
