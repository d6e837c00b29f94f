"""A copy of a model for a viewer: encodings written where it shows them, small data files beside it.

Data files are copied, never linked: a file with two names is refused as external data, here and by onnx, for as long as the
viewer runs. Those larger than a browser shows values of are left out."""

from __future__ import annotations

import os
import shutil

import onnx_ir as ir
from qdq_passes.graph.foreign import slots
from qdq_passes.pipeline.pipeline import run_pipeline

from qdqtool.io.files.atomic import write_whole
from qdqtool.io.models.save import serialize, to_bytes

#: Bytes up to which a data file is copied.
COPIED = 1 << 28


def write_for_viewer(model: ir.Model, path: str | os.PathLike[str]) -> list[str]:
    """Write ``model``, described by `describe-encodings`, to ``path``, and put its data files beside it.

    ``model`` is changed; the file it comes from is not.

    Args:
        model: the model.
        path: where the copy goes; its folder exists.

    Returns:
        Data files that are not there, as they are larger than `COPIED`.

    Raises:
        ModelError: the model cannot be written.
        UnsupportedError: it is over 2 GiB without its data files.
    """
    run_pipeline(model, "describe-encodings")
    tensors = [slot.tensor for slot in slots(model)]
    files = {tensor.location: tensor.path for tensor in tensors if isinstance(tensor, ir.ExternalTensor)}
    write_whole(path, to_bytes(serialize(model)))
    large = []
    for location, source in files.items():
        if os.path.getsize(source) > COPIED:
            large.append(source)
            continue
        target = os.path.join(os.path.dirname(path), location)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        shutil.copyfile(source, target)
    return large
