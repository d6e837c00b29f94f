"""What the two models exported from torch share: the export itself, the check against torch, and outlier channels."""

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from _build import OPSET, run, save, strip_exporter_traces
from torch import Tensor, nn


def give_outliers(
    gain: Tensor, readers: Sequence[Tensor], channels: Mapping[int, float], shift: Tensor | None = None
) -> None:
    """Make channels of a norm's output large without changing the function: y*f, and column/f in every reader.

    gain and shift [D] of the norm, readers [M, D]; channels: index -> factor, a power of two so that the change is
    exact.
    """
    with torch.no_grad():
        for channel, factor in channels.items():
            for scaled in [gain] if shift is None else [gain, shift]:
                scaled[channel] *= factor
            for weight in readers:
                weight[:, channel] /= factor


def difference(net: nn.Module, path: Path, feeds: Mapping[str, Tensor]) -> float:
    """Largest absolute difference between torch and onnxruntime over all outputs (NaN when either has one)."""
    with torch.no_grad():
        expected = net(*feeds.values())
    wanted = [expected] if isinstance(expected, Tensor) else list(expected)
    results = run(path, {name: value.numpy() for name, value in feeds.items()})
    return float(np.max([np.abs(got - want.numpy()).max() for got, want in zip(results, wanted, strict=True)]))


def export(
    net: nn.Module,
    example: Mapping[str, Tensor],
    outputs: Sequence[str],
    dynamic: Mapping[str, Mapping[int, str]],
    path: Path,
    checks: Sequence[Mapping[str, Tensor]],
) -> None:
    """Export `net` with torch's dynamo exporter and compare it with torch on each of `checks` (within 1e-4).

    example, checks: input name -> tensor, in the order of `forward`; dynamic: input name -> {axis: name of the
    dimension}. Raises `ValueError` when the results differ.
    """
    warnings.filterwarnings("ignore")
    with torch.no_grad():
        program = torch.onnx.export(
            net,
            tuple(example.values()),
            dynamo=True,
            opset_version=OPSET,
            input_names=list(example),
            output_names=list(outputs),
            dynamic_shapes=[dict(dynamic.get(name, {})) for name in example],
            verbose=False,
        )
    if program is None:
        raise ValueError(f"nothing exported for {path.name}")
    model = program.model_proto
    strip_exporter_traces(model)
    save(model, path)
    worst = max(difference(net, path, feeds) for feeds in checks)
    if not worst <= 1e-4:
        raise ValueError(f"{path.name} differs from torch by {worst}")
    opsets = {entry.domain or "ai.onnx": entry.version for entry in model.opset_import}
    print(f"{path.name}: opset {opsets}, differs from torch by at most {worst:.1e}")
