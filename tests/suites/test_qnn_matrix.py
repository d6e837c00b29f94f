"""What `qnn_htp` says of the 916 single-operator models, against what was measured of them."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import onnx_ir as ir
import pytest
from qdq_passes.npu.units.units import Unit, units_of
from qdq_passes.npu.units.verdict import VERDICT_KINDS, Verdict, VerdictKind

from qdqtool.targets.loading import load_target
from tests.cases.suggested import complaint
from tests.suites.qnn_cases import cases

DATA = Path(__file__).parent.parent / "data" / "qnn_htp_verdicts.json"
#: Of 916 cells as many must agree.
ENOUGH = 907


def measured() -> dict[tuple[str, str], VerdictKind]:
    """(operator, scheme) → verdict."""
    kinds: dict[str, VerdictKind] = {"CPU": "fallback", "load_error": "refused"}
    cells = json.loads(DATA.read_text("utf-8"))["cells"]
    found: dict[tuple[str, str], VerdictKind] = {}
    for operator, schemes in cells.items():
        for scheme, cell in schemes.items():
            on_npu: VerdictKind = "npu-int" if cell["integer_only"] else "npu-float"
            found[operator, scheme] = kinds.get(cell["verdict"], on_npu)
    return found


@cache
def matrix() -> list[tuple[str, str, list[Unit]]]:
    """Operator, scheme and units of each model."""
    return [(operator, scheme, units_of(ir.from_proto(model))) for operator, scheme, model in cases()]


@cache
def judged(target: str) -> dict[tuple[str, str], Verdict]:
    """(operator, scheme) → the worst verdict of a unit of that model."""
    rules = load_target(target)
    return {
        (operator, scheme): max((rules.judge(unit) for unit in units), key=lambda v: VERDICT_KINDS.index(v.kind))
        for operator, scheme, units in matrix()
    }


def test_the_matrix() -> None:
    wanted, found = measured(), judged("qnn_htp")
    assert set(found) == set(wanted)
    assert len(found) == 916
    misses = [
        f"{o} {s}: {found[o, s].kind}, measured {kind}" for (o, s), kind in wanted.items() if found[o, s].kind != kind
    ]
    print(f"{len(found) - len(misses)} of {len(found)} verdicts as measured", *misses, sep="\n")
    assert len(found) - len(misses) >= ENOUGH


def test_every_verdict_but_a_plain_one_has_a_reason() -> None:
    for (operator, scheme), verdict in judged("qnn_htp").items():
        assert verdict.rule, (operator, scheme)
        assert verdict.kind == "npu-int" or verdict.reason, (operator, scheme)
        assert "None" not in verdict.reason, verdict.reason
        assert (verdict.engine == "CPU") == (not verdict.is_npu)


@pytest.mark.parametrize("target", ["generic_int8", "qnn_htp", "qnn_htp_v68", "vitis_xint8"])
def test_every_verdict_but_a_plain_one_has_a_way_out(target: str) -> None:
    for case, verdict in judged(target).items():
        said = None if verdict.kind == "npu-int" else complaint(verdict.suggestion)
        assert said is None, (case, verdict.rule, said, verdict.suggestion)


@pytest.mark.parametrize(
    ("case", "kind", "reason", "suggestion"),
    [
        (
            ("LeakyRelu", "s8sym"),
            "fallback",
            "LeakyRelu with symmetric int8 input is not supported on qnn_htp",
            "use asymmetric uint8, or Relu/PRelu",
        ),
        (
            ("LeakyRelu", "s8"),
            "fallback",
            "LeakyRelu with asymmetric int8 input is not supported on qnn_htp",
            "use asymmetric uint8, or Relu/PRelu",
        ),
        (
            ("AveragePool_3x3", "s16sym"),
            "refused",
            "AveragePool with symmetric int16 input is not supported on qnn_htp",
            "use uint16 with zero point 32768, or 8 bits",
        ),
        (("Erf", "u8"), "fallback", "Erf is not supported on qnn_htp", "qdqtool opt -p fuse-gelu"),
        (
            ("Conv3x3", "XINT8_b8"),
            "npu-float",
            "its bias is int8: it is dequantized",
            "qdqtool qdq convert --bias int32",
        ),
        (("Conv+Relu", "XINT8_b32"), "npu-float", "no pair stands between Conv and Relu", "qdqtool qdq insert"),
        (("MatMul_const", "A8u_W4_blk16"), "fallback", "takes 16-bit activations only, not uint8", "use uint16"),
    ],
)
def test_reasons(case: tuple[str, str], kind: str, reason: str, suggestion: str) -> None:
    verdict = judged("qnn_htp")[case]
    assert verdict.kind == kind
    assert reason in verdict.reason
    assert suggestion in verdict.suggestion


def test_the_older_architectures_take_no_16_bit_weights() -> None:
    """Measured: everything else is as from v73 on."""
    older, newer = judged("qnn_htp_v68"), judged("qnn_htp")
    changed = {case for case, verdict in older.items() if verdict.kind != newer[case].kind}
    assert {scheme for _, scheme in changed} == {"A16u_W16s"}
    assert {operator for operator, _ in changed} >= {"Conv3x3", "Gemm_transB", "MatMul_const"}
    assert all(not older[case].is_npu for case in changed)
