"""One run of every command that prints a JSON document about the digits, for the schemas of these documents."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.cases.cli_helpers import CALIB, DIGITS, SAMPLES, cli

TARGET = ("--target", "vitis_xint8")
FEW = ("--data", CALIB, "--samples", "4")
#: Commands that need a decoder, a chip or workers of their own, that print no document, or that go on until they are stopped.
WITHOUT = {
    "calibrate-chip", "completion", "debug reduce", "demo", "estimate", "generate", "list", "llm perplexity", "llm verify", "plan", "split",
    "view",
}  # fmt: skip


def runs(folder: Path) -> dict[str, list[tuple[str | Path, ...]]]:
    """Command → arguments, of runs that make different parts of its document; files of earlier ones are in ``folder``."""
    q, r, static, d = folder / "q.onnx", folder / "r.json", folder / "f.onnx", folder / "deployed"
    edits = {
        name: [("qdq", name, q, "--all", "-o", folder / f"{name}.onnx")] for name in ("remove", "share", "dedicate")
    }
    tensor = ("--select", "tensor:logits")
    return {
        "quantize": [("quantize", DIGITS, *TARGET, *FEW, "-o", q, "--save-ranges", folder / "s.json"), ("quantize", DIGITS, *FEW, "-o", folder / "u.onnx")],
        "calibrate": [("calibrate", DIGITS, *FEW, "-o", r)],
        "inspect": [("inspect", q), ("inspect", DIGITS)],
        "check": [("check", q, *TARGET), ("check", DIGITS, *TARGET), ("check", SAMPLES / "detector.onnx")],
        "diff": [("diff", DIGITS, q), ("diff", q, q)],
        "match": [("match", DIGITS, "op:Gemm")],
        "opt": [("opt", DIGITS, "-p", "fold-batch-norm,sort", "-o", folder / "o.onnx")],
        "simplify": [("simplify", DIGITS, "-o", folder / "t.onnx")],
        "extract": [("extract", DIGITS, "--outputs", "logits", "-o", folder / "e.onnx")],
        "rename": [("rename", DIGITS, "--value", "logits=scores", "-o", folder / "n.onnx")],
        "fix-shapes": [("fix-shapes", q, "--dim", "N=1", "-o", static)],
        "convert-opset": [("convert-opset", DIGITS, "--opset", "21", "-o", folder / "v.onnx")],
        "externalize": [("externalize", DIGITS, "-o", folder / "x.onnx")],
        "sensitivity": [("sensitivity", DIGITS, *FEW)],
        "mixed-precision": [("mixed-precision", DIGITS, *FEW, "--min-sqnr", "20", "-o", folder / "m.onnx")],
        "compare": [("compare", DIGITS, q, *FEW), ("compare", DIGITS, q, *FEW, "--mode", "local")],
        "analyze": [("analyze", q, *TARGET, "--memory"), ("analyze", DIGITS, *TARGET)],
        "simulate": [("simulate", static, *TARGET, "--data", CALIB, "--samples", "1", "--float", DIGITS)],
        "lower": [("lower", static, *TARGET, "-o", folder / "l.onnx")],
        "compile": [("compile", static, *TARGET, "-o", folder / "c.onnx")],
        "explain": [("explain", q, "--float", DIGITS, *FEW, "--worst", "1")],
        "report": [("report", q, "--float", DIGITS, *FEW, "-o", folder / "p.html")],
        "deploy": [("deploy", DIGITS, *TARGET, *FEW, "-o", d)],
        "encodings export": [("encodings", "export", q, "--format", "qnn", "-o", folder / "e.json")],
        "encodings import": [("encodings", "import", DIGITS, "--encodings", folder / "e.json", "-o", folder / "i.onnx")],
        "encodings convert": [("encodings", "convert", folder / "e.json", "--format", "ort", "-o", folder / "k.json", "--model", DIGITS)],
        "qdq list": [("qdq", "list", q)],
        "qdq convert": [("qdq", "convert", q, "--dtype", "uint8", "--kinds", "activation", "-o", folder / "w.onnx")],
        "qdq set": [("qdq", "set", q, *tensor, "--scale", "0.5", "-o", folder / "g.onnx")],
        "qdq insert": [("qdq", "insert", DIGITS, *tensor, "--scale", "0.5", "-o", folder / "y.onnx")],
        "qdq move": [("qdq", "move", q, "--select", "tensor:/stem/relu_output_0", "--down", "-o", folder / "z.onnx")],
        "qdq fold": [("qdq", "fold", q, "-o", folder / "h.onnx")],
        **{f"qdq {name}": lines for name, lines in edits.items()},
    }  # fmt: skip


def documents(folder: Path) -> Iterator[tuple[str, list[Any]]]:
    """Command and its documents, in an order in which each finds the files that it reads."""
    for name, lines in runs(folder).items():
        done = [cli(*line, "--json", code=None) for line in lines]
        assert all(each.code in (0, 1) for each in done), f"{name}: {[each.err for each in done]}"
        yield name, [each.json for each in done]
