"""The rules there are."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from qdq_passes.npu.traps import pairs, scales
from qdq_passes.npu.traps.rule import TrapRule

#: What is a trap on every backend of integers.
ALWAYS: tuple[TrapRule, ...] = (
    scales.BiasScale(),
    scales.BiasSaturated(),
    scales.ScaleAlongSummedAxis(),
    scales.ScaleNoPowerOfTwo(),
    scales.SubnormalScale(),
    pairs.MixedWidths(),
    pairs.MovementRequantizes(),
    pairs.RequantizedAlone(),
    pairs.SeveralEncodings(),
    pairs.ReadBesideItsPair(),
    pairs.SplitPair(),
)


@cache
def rules_of_targets() -> Mapping[str, type[TrapRule]]:
    """The rules that a target may list, by id."""
    from qdq_passes.npu.traps import groups, memory, operators

    rules: tuple[type[TrapRule], ...] = (
        operators.SoftmaxSymmetricOutput,
        groups.ClipAfterPair,
        groups.SiluInt16,
        operators.ScatterRequantize,
        operators.AveragePoolRequantize,
        operators.AveragePoolPadsFloat,
        operators.ResizeRequantize,
        operators.LayerNormParameters,
        operators.MatmulInt16Narrowed,
        operators.SignedMatmulFloat,
        operators.UnreliableOperator,
        operators.FloatOperator,
        scales.BlockedUint4ZeroPoint,
        scales.Int8BiasFloat,
        groups.ActivationWithoutPair,
        groups.PairInsideFusedLayer,
        memory.PaddedTiles,
        memory.CacheSizes,
        memory.CachePerLayer,
        operators.HalfAngles,
    )
    return {rule.name(): rule for rule in rules}
