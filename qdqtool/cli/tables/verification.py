"""How a comparison of static graphs with their dynamic model is shown, by `split --verify` and `llm verify`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qdqtool.cli.render import say, table

if TYPE_CHECKING:
    from qdqtool.llm.run.verifying import Verification


def show_verification(found: Verification) -> None:
    """A row a case, and the verdict."""
    rows = [
        (
            *map(str, (case.batch_size, case.context, case.chunk, case.prompt, case.decoded)), f"{case.difference:.1e}",
            "" if case.difference <= found.tolerance else _where(case.layer, case.token),
        )
        for case in found.cases
    ]  # fmt: skip
    table(("rows", "slots", "chunk", "prompt", "decoded", "difference", ""), rows)
    verdict = "equal" if found.passed else "DIFFERENT"
    say(f"{verdict}: at most {found.worst:.1e} of the largest logit, {found.tolerance:g} allowed")
    if not found.passed and found.is_half:
        say(
            "the model computes in 16 bit, where float16 alone rounds a logit by 2^-11 = 4.9e-4 of itself: see --tolerance"
        )


def _where(layer: int | None, token: int) -> str:
    place = f"behind token {token}"
    return f"{place}; the cache of layer {layer} is the first that differs" if layer is not None else place
