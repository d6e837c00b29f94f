"""Golden cases: ONNX text whose comments say which pipeline runs and what must come out.

# RUN: fold-batch-norm                    the pipeline (required)
# RANGES: x=-1..1 y=0..4                  bound to @ranges: observed range per tensor
# ENCODING: w {"dtype": "int4", …}        bound to @ranges: a ready encoding of one tensor (canonical JSON)
# SAMPLE: {"x": [1, 2]}                 one sample of @data, the float inputs by name (JSON); @ranges is not bound then
# FLOATS: w [[1.5, 2]]                   bound to @float: float values of a tensor
# STATISTICS: conv {"absmax": [1, 2]}    bound to @statistics: what was seen of the input of one layer (JSON of its arrays)
# LEARN: conv {"inputs": [[[1]]], "wanted": [[[2]]]}    likewise: samples of a layer, what it reads and what it is to give
# TARGET: takes=Conv policy=region        bound to @target: see tests/golden/fake_target.py
# SCOPE: conv=model.layers.0              module path of a node, as an exporter's metadata would give it
# NUMERICS: none, because …               onnxruntime does not run this model, or the numbers are not compared
# NEWEST: because …                       the numbers need the newest onnxruntime
# TWICE: no, because …                    a second run of the pipeline does something again, or complains
# CHECK: …  # CHECK-NEXT: …  # CHECK-NOT: …         FileCheck lines against `dump` of the result
# CHANGES: … # CHANGES-NEXT: … # CHANGES-NOT: …     likewise against the changes and skips, one a line
# FAILS: …                                likewise against the error's type and text; there is no result then
# UNCHANGED                               the dump stays the same and nothing but skips is reported
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import onnx_ir as ir
from filecheck.finput import FInput
from filecheck.matcher import Matcher
from filecheck.options import Options
from filecheck.parser import Parser, pattern_for_opts
from qdq_passes.graph.nesting import SCOPE
from qdq_passes.graph.uses import all_nodes
from qdq_passes.numerics.encoding import Encoding
from qdq_passes.numerics.moments import LayerStatistics
from qdq_passes.pipeline.hooks import VerifyEach
from qdq_passes.pipeline.pipeline import Report, run_pipeline
from qdq_passes.recover.look.learning import LayerSamples

from qdqtool.io.models.load import model_of
from qdqtool.quantization.calibrating import Calibrator
from tests.cases.small_models import Observed
from tests.golden.fake_target import FakeTarget

FOLDER = Path(__file__).parent
_NUMBER = r"[-+0-9.e]+?"


@dataclass(frozen=True)
class Golden:
    """One case file."""

    path: Path

    @property
    def name(self) -> str:
        """``<pass>/<case>``."""
        return f"{self.path.parent.name}/{self.path.stem}"

    @cached_property
    def text(self) -> str:
        """The whole file."""
        return self.path.read_text(encoding="utf-8")

    def directives(self, word: str) -> list[str]:
        """What follows ``# WORD:`` (or stands alone as ``# WORD``), one entry a line."""
        return [m.strip() for m in re.findall(rf"^ *# {word}(?::(.*))?$", self.text, re.MULTILINE)]

    def has(self, prefix: str) -> bool:
        """Whether the file has check lines of ``prefix``."""
        return re.search(rf"^ *# {prefix}(-[A-Z]+)?:", self.text, re.MULTILINE) is not None

    @property
    def pipeline(self) -> str:
        """The text behind ``# RUN:``; several such lines are one pipeline."""
        return ",".join(self.directives("RUN"))

    def inputs(self) -> Mapping[str, Any]:
        """The named inputs of the pipeline."""
        ranges: dict[str, Observed | Encoding] = {}
        for line in self.directives("RANGES"):
            for name, low, high in re.findall(rf"(\S+?)=({_NUMBER})\.\.({_NUMBER})(?:\s|$)", line):
                ranges[name] = Observed(float(low), float(high))
        for line in self.directives("ENCODING"):
            name, _, data = line.partition(" ")
            ranges[name] = Encoding.from_json(json.loads(data))
        statistics: dict[str, LayerStatistics | LayerSamples] = {}
        for line in self.directives("STATISTICS"):
            name, _, data = line.partition(" ")
            arrays = {field: np.array(values, np.float64) for field, values in json.loads(data).items()}
            statistics[name] = LayerStatistics(count=1, **arrays)  # type: ignore[arg-type]
        for line in self.directives("LEARN"):
            name, _, data = line.partition(" ")
            given = {field: np.array(values, np.float64) for field, values in json.loads(data).items()}
            statistics[name] = LayerSamples(**given)  # type: ignore[arg-type]
        samples = [json.loads(line) for line in self.directives("SAMPLE")]
        data = [{name: np.array(values, np.float32) for name, values in sample.items()} for sample in samples]
        floats = {name: ir.tensor(np.array(json.loads(data), np.float32)) for name, _, data in
                  (line.partition(" ") for line in self.directives("FLOATS"))}  # fmt: skip
        return {
            "statistics": statistics,
            "float": floats,
            **({"data": data, "runtime": Calibrator()} if data else {"ranges": ranges}),
            "target": FakeTarget.of(" ".join(self.directives("TARGET"))),
        }

    def model(self) -> ir.Model:
        """The model of the text, freshly parsed."""
        model = model_of(onnx.parser.parse_model(self.text))
        scopes = dict(line.split("=", 1) for line in self.directives("SCOPE"))
        for node in all_nodes(model):
            if node.name in scopes:
                node.metadata_props[SCOPE] = scopes.pop(node.name)
        assert not scopes, f"no node called {' or '.join(scopes)}"
        return model

    def run(self, model: ir.Model) -> Report:
        """Run the pipeline on ``model``, verified after each pass."""
        return run_pipeline(model, self.pipeline, inputs=self.inputs(), hooks=[VerifyEach()])


def cases() -> list[Golden]:
    """Every case, sorted."""
    return [Golden(path) for path in sorted(FOLDER.glob("*/*.onnxtxt"))]


def filecheck(prefix: str, path: Path, text: str) -> str:
    """Match ``text`` with the lines of ``prefix`` in the file at ``path``; what is wrong, or nothing."""
    options = Options(str(path), check_prefixes=[prefix], comment_prefixes=["RUN"])
    parser = Parser(options, io.StringIO(path.read_text(encoding="utf-8")), *pattern_for_opts(options))
    matcher = Matcher(options, FInput(f"<{prefix.lower()}>", text), parser)
    matcher.stderr = io.StringIO()
    code = matcher.run()
    return f"{matcher.stderr.getvalue()}\nwhole text:\n{text}" if code else ""
