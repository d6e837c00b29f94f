"""A verb written as a command says what the command reads."""

from __future__ import annotations

import shlex
from typing import Any

import pytest

from qdqtool.cli.cmd_compare import compare
from qdqtool.cli.cmd_quantize import quantize
from qdqtool.cli.commands import values_of
from qdqtool.io.feeds.image_options import Fit, ImageOptions
from qdqtool.options import options_of
from qdqtool.verbs.compare import Compare
from qdqtool.verbs.quantize import Quantize
from qdqtool.verbs.work.command_lines import IN_MEMORY, command_line

IMAGES = ImageOptions(size=(224, 192), mean=(0.5, 0.25), scale=1 / 255, fit=Fit.LETTERBOX)
QUANTIZE, COMPARE = Quantize("a model.onnx", "q.onnx", data="d.npz"), Compare("a.onnx", "b.onnx", data="random:2:7")
VERBS = {
    "plain": QUANTIZE,
    "lists": Quantize(
        "m.onnx", "q.onnx", data="d", exclude=("op:Conv", "/a b/*"), int16=["x"], extra_options={"K": "a=b"}
    ),
    "switches": Quantize(
        "m.onnx", "q.onnx", fuse_layers=False, per_axis_conv=False, per_axis_linear=True, integer_io=True
    ),
    "values": Quantize("m.onnx", "q.onnx", smooth=0.3, samples=3, image=IMAGES, kv_cache="int8", jobs=2),
    "arguments": COMPARE,
    "others": Compare("a.onnx", "b.onnx", data="d.npz", min_sqnr=31.5, tensors=("t", "u"), per_slice=-1, jobs=3),
}


@pytest.mark.parametrize("case", VERBS)
def test_the_command_reads_what_is_written(case: str) -> None:
    verb: Any = VERBS[case]
    name, command = ("quantize", quantize) if isinstance(verb, Quantize) else ("compare", compare)
    tool, called, *words = shlex.split(command_line(name, verb))
    assert (tool, called) == ("qdqtool", name)
    given = command.make_context(name, words).params
    read = values_of(type(verb), given)
    for each in options_of(type(verb)):
        if each.option.kind != "python":
            wanted, found = getattr(verb, each.name), read[each.name]
            assert (tuple(found) if isinstance(wanted, list) else found) == (
                tuple(wanted) if isinstance(wanted, list) else wanted
            )


def test_what_no_text_names() -> None:
    assert (
        command_line("quantize", Quantize("m.onnx", data=[{"x": object()}]))
        == f"qdqtool quantize m.onnx --data {IN_MEMORY}"
    )
