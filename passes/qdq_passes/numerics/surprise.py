"""How little a language model foresaw what came: −ln p of tokens, from logits."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from qdq_passes.errors import ModelError, UsageError
from qdq_passes.numerics.arrays import Array


def surprise(logits: Array, targets: Sequence[int]) -> npt.NDArray[np.float64]:
    """−ln p of each of ``targets`` in nats, p the softmax of ``logits`` [tokens, vocabulary] in float64.

    Raises:
        UsageError: a target is no token of the vocabulary.
        ModelError: a logit is not a number.
    """
    scores = logits.astype(np.float64)
    if max(targets) >= scores.shape[1]:
        raise UsageError(
            f"the text has the token {max(targets)}, the model knows {scores.shape[1]}", hint="give its own --tokenizer"
        )
    highest = scores.max(axis=1)
    if not np.isfinite(highest).all():
        raise ModelError("the logits are not finite", hint="compare the model with its source: `llm verify`")
    norms = highest + np.log(np.exp(scores - highest[:, None]).sum(axis=1))
    found: npt.NDArray[np.float64] = norms - scores[np.arange(len(targets)), list(targets)]
    return found
