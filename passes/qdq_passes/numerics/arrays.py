"""What arrays are called in signatures."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

#: Numbers of any type.
Array = npt.NDArray[Any]
Reals = npt.NDArray[np.float64]
