"""Granularity of an encoding: one scale per tensor, per index of an axis, or per block along an axis."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.errors import ModelError


@dataclass(frozen=True)
class Granularity:
    """How scales are laid over a tensor.

    Args:
        axis: None for per-tensor; else the axis the scales run along.
        block_size: elements along ``axis`` that share a scale; 0 for per-axis.
    """

    axis: int | None = None
    block_size: int = 0

    @property
    def kind(self) -> str:
        """``"per-tensor"``, ``"per-axis"`` or ``"blocked"``."""
        if self.axis is None:
            return "per-tensor"
        return "blocked" if self.block_size else "per-axis"

    def scale_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Shape of the scales for a tensor of ``shape``: ``()``, ``(D_axis,)`` or ``shape`` with ceil(D_axis / block_size)."""
        if self.axis is None:
            return ()
        axis = self.axis % len(shape)
        if not self.block_size:
            return (shape[axis],)
        return tuple(-(-d // self.block_size) if i == axis else d for i, d in enumerate(shape))

    def expand(self, scales: npt.NDArray[Any], shape: tuple[int, ...]) -> npt.NDArray[Any]:
        """``scales`` laid out so that they broadcast against a tensor of ``shape``.

        Raises:
            ModelError: the number of scales does not fit ``shape``.
        """
        if self.axis is None:
            if scales.size != 1:
                raise ModelError(f"{scales.size} scales where one per tensor is expected", hint="give an axis")
            return scales.reshape(())
        if not -len(shape) <= self.axis < len(shape):
            raise ModelError(f"axis {self.axis} does not exist in a tensor of shape {list(shape)}")
        axis = self.axis % len(shape)
        if scales.shape != self.scale_shape(shape):
            raise ModelError(
                f"{self.kind} scales of shape {list(scales.shape)} on a tensor of shape {list(shape)}, axis {axis}",
                hint=f"expected shape {list(self.scale_shape(shape))}",
            )
        if not self.block_size:
            return scales.reshape([-1 if i == axis else 1 for i in range(len(shape))])
        repeated = np.repeat(scales, self.block_size, axis=axis)
        return np.take(repeated, range(shape[axis]), axis=axis)


PER_TENSOR = Granularity()
