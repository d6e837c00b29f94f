"""Rules on traps, in text: each case says what its rule, named by the folder, must find, and finds nothing else.

# TRAP: {rule = "…", types = […]}      the entry of a target file, where the rule needs parameters
# FINDS: where: message; hint          one finding, in order; a case without such a line is one where the rule finds nothing
"""

from __future__ import annotations

import functools
import re
import shlex
import tracemalloc
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import onnxruntime as ort
import pytest
from qdq_passes.core.findings import Finding
from qdq_passes.npu.traps.rule import TrapRule, find_traps
from qdq_passes.npu.traps.table import ALWAYS, rules_of_targets
from qdq_passes.verification.rules import RULES, verify

from qdqtool.io.models.load import load, model_of
from qdqtool.targets.loading import load_target
from qdqtool.verbs.advice.commands import completed
from tests.cases.cli_helpers import CALIB, DIGITS, SAMPLES, cli
from tests.cases.small_models import model
from tests.cases.suggested import commands

FOLDER = Path(__file__).parent
IDS = {rule.name(): rule for rule in ALWAYS} | dict.fromkeys(rules_of_targets())
TARGET = """
description = "a chip with one trap"
version = "1"
traps = [{entry}]
[[op]]
types = ["Conv"]
scheme = [{{activations = ["int8"]}}]
"""


@dataclass(frozen=True)
class Case:
    """One case file."""

    path: Path

    @property
    def name(self) -> str:
        return f"{self.path.parent.name}/{self.path.stem}"

    @property
    def rule(self) -> str:
        return self.path.parent.name

    @functools.cached_property
    def text(self) -> str:
        return self.path.read_text(encoding="utf-8")

    def directives(self, word: str) -> list[str]:
        return [line.strip() for line in re.findall(rf"^# {word}: (.*)$", self.text, re.MULTILINE)]

    def model(self) -> ir.Model:
        return model_of(onnx.parser.parse_model(self.text))


CASES = [Case(path) for path in sorted(FOLDER.glob("*/*.onnxtxt"))]
each_case = pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])


def rules_of(case: Case, folder: Path) -> list[TrapRule]:
    """The rule of the folder; one of targets is read from a target file."""
    always = [rule for rule in ALWAYS if rule.name() == case.rule]
    if always:
        return always
    (folder / "chip.toml").write_text(TARGET.format(entry=(case.directives("TRAP") or [f'"{case.rule}"'])[0]), "utf-8")
    return list(load_target(folder / "chip.toml").traps)


def said(finding: Finding) -> str:
    return f"{finding.where}: {finding.message}; {finding.hint}"


@each_case
def test_case(case: Case, tmp_path: Path) -> None:
    graph = case.model()
    found = find_traps(graph, rules_of(case, tmp_path))
    assert [said(finding) for finding in found] == case.directives("FINDS")
    assert {finding.rule for finding in found} <= {case.rule}
    assert {finding.level for finding in found} <= {"warning", "note"}


@each_case
def test_the_model_of_a_case_is_sound(case: Case) -> None:
    """A trap is what a sound model walks into; what our verifier or onnx refuses would be no case."""
    assert verify(case.model(), minimum="error") == []
    onnx.checker.check_model(onnx.parser.parse_model(case.text), full_check=True)


def test_every_rule_has_cases() -> None:
    stems = {name: [case.path.stem.partition("_")[0] for case in CASES if case.rule == name] for name in IDS}
    assert {case.rule for case in CASES} == set(IDS)
    for name, kinds in stems.items():
        assert {"acts", "declines"} <= set(kinds) <= {"acts", "declines", "border"}, name
    for case in CASES:
        if not case.path.stem.startswith("border"):
            assert bool(case.directives("FINDS")) == case.path.stem.startswith("acts"), case.name


def test_ids_are_not_those_of_the_verifier() -> None:
    assert len(IDS) == len(ALWAYS) + len(rules_of_targets())
    assert not set(IDS) & set(RULES)
    for rule in [*(type(rule) for rule in ALWAYS), *rules_of_targets().values()]:
        assert rule.summary().endswith((".", ":")), rule.name()


@pytest.mark.parametrize("path", [Path(DIGITS), *sorted(SAMPLES.glob("*.onnx"))], ids=lambda path: path.stem)
def test_no_false_alarm_on_what_we_make(path: Path, tmp_path: Path) -> None:
    """Our models, and what our own quantizer makes of them, fall into no trap."""
    assert find_traps(load(path), ALWAYS) == []
    data = CALIB if path.stem == "digits" else "random:2"
    done = cli("quantize", path, "--data", data, "--samples", "2", "-o", tmp_path / "q.onnx", code=None)
    if done.code == 0:
        assert find_traps(load(tmp_path / "q.onnx"), ALWAYS) == []
    else:
        assert path.stem in ("loop_body", "quark_layout", "tiny_llama"), (
            done.err
        )  # nothing to quantize; no random data fits it


#: Cases whose hint starts from the float model, or asks for sizes that only a user knows.
UNKNOWN = (
    "average-pool-pads-float",
    "cache-per-layer",
    "cache-sizes",
    "half-angles",
    "layer-norm-parameters",
    "padded-tiles",
)


@pytest.mark.parametrize("case", [c for c in CASES if c.directives("FINDS")], ids=lambda case: case.name)
def test_the_way_out_leads_out(case: Case, tmp_path: Path) -> None:
    """Hints name whole commands, or say that there is none; what is run of the first finding takes it away."""
    onnx.save(onnx.parser.parse_model(case.text), tmp_path / "in.onnx")
    rules = rules_of(case, tmp_path)
    first, *others = find_traps(case.model(), rules)
    assert "qdqtool" not in re.sub("`[^`]*`", "", first.hint)
    for way in first.hint.split("; or "):
        if not commands(way) or "{target}" in way or case.rule in UNKNOWN:
            assert case.rule in UNKNOWN or "{target}" in way or way.startswith("no pass is known that ")
            continue
        out = tmp_path / "in.onnx"
        for number, command in enumerate(commands(completed(way, str(out)))):
            made = tmp_path / f"{number}.onnx"
            words = shlex.split(command)[1:]
            words[words.index("-o") - 1], words[words.index("-o") + 1] = str(out), str(made)
            cli(*words, "-q")
            out = made
        left = [(found.where, found.message) for found in find_traps(load(out), rules)]
        assert (first.where, first.message) not in left
        assert len(left) <= len(others)


@pytest.mark.parametrize(("scale", "fused"), [(0.125, True), (0.25, False)])
def test_onnxruntime_agrees_on_the_scale_of_a_bias(scale: float, fused: bool, tmp_path: Path) -> None:
    """It makes an integer layer of what the rule lets pass, and computes in float what the rule reports."""
    text = f"""g (float[1,1,4,4] x) => (float[1,1,4,4] y)
      <float s = {{0.5}}, uint8 z = {{0}}, int8 wz = {{0}}, int8[1,1,1,1] w = {{2}}, float ws = {{0.25}}, int32[1] b = {{8}}, float bs = {{{scale}}}>
      {{ [q] i = QuantizeLinear(x, s, z) [d] f = DequantizeLinear(i, s, z) [dw] v = DequantizeLinear(w, ws, wz)
        [db] c = DequantizeLinear(b, bs) [conv] t = Conv(f, v, c) [q2] j = QuantizeLinear(t, s, z) [d2] y = DequantizeLinear(j, s, z) }}"""
    graph = model(text)
    assert bool(find_traps(graph, ALWAYS)) != fused
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    ort.InferenceSession(ir.to_proto(graph).SerializeToString(), options, providers=["CPUExecutionProvider"])
    types = [node.op_type for node in onnx.load(tmp_path / "optimized.onnx").graph.node]
    assert ("QLinearConv" in types) == fused


def test_a_million_scales_are_no_million_objects() -> None:
    """Blocked weights of language models have that many; as Python numbers each scale would take 32 bytes, and its zero point 8."""
    graph = model(
        """g (float[1,1] x) => (float[1,1] y) <float s = {0.5}, int8 z = {0}, int8[1,1] w = {1}>
        { [d] f = DequantizeLinear<axis: int = 0, block_size: int = 16>(w, s, z) [m] y = MatMul(x, f) }"""
    )
    arrays = {"w": np.ones((16384, 1024), np.int8), "s": np.full((1024, 1024), 0.3, np.float32)}
    arrays["z"] = np.zeros((1024, 1024), np.int8)
    for name, array in arrays.items():
        value = graph.graph.initializers[name]
        value.const_value, value.shape = ir.tensor(array, name=name), ir.Shape(array.shape)
    tracemalloc.start()
    try:
        assert find_traps(graph, ALWAYS) == []
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 24 * arrays["s"].size, peak
