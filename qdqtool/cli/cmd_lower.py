"""Write the QDQ model MODEL with the integer operators that an NPU computes, to look at or to run on the CPU."""

from __future__ import annotations

from typing import Any

from qdqtool.cli.compiling import target_options
from qdqtool.cli.options import command, model_argument, output_options
from qdqtool.cli.render import Out


@command()
@model_argument
@output_options
@target_options
def lower(out: Out, model: str, output: str, overwrite: bool, **options: Any) -> None:
    """Write the QDQ model MODEL with the integer operators that an NPU computes, to look at or to run on the CPU.

    The operators are those of the domain ai.qdqtool; onnxruntime's CPU provider runs them with our library of custom operators.
    """
    from qdqtool import api
    from qdqtool.cli.compiling import show_lowered
    from qdqtool.cli.saving import refuse_output
    from qdqtool.io.models.hooks import Reproducer

    refuse_output(output, overwrite, model)
    with out.progress("lowering"):
        hooks = [Reproducer(f"{output}.reproducer")]
        done = api.lower(model, output, overwrite=overwrite, warn=out.warn, hooks=hooks, **options)
    show_lowered(out, done, model, output)


command = lower
