"""Quantization presets, one TOML file each: ``xint8.toml`` is called ``--preset xint8``.

To add one, put such a file here, into ``presets/`` of a folder given with ``--path``, or pass it as ``--preset ./mine.toml``;
``schema.json`` beside this file lists every key. A key left out takes the default of the pass it belongs to:

    description = "int8 activations with a zero point, int8 weights per channel, float scales"

    [calibration]
    method = "minmax"                           # as in --method

    [pipeline]
    before = "give-names,fold-batch-norm,sort"  # passes run on the float model before calibration

    [encodings]                                 # the policy: options of annotate-encodings
    scales = "any"
    symmetric = false
    bias = "int32"                              # at s_x·s_w
    per_axis = ["Conv", "MatMul:1"]             # a scale per output channel, and per index of axis 1

    [insert]                                    # options of insert-qdq
    weights = "dq"

    [selection]
    ops = ["Conv", "Gemm"]                      # operator types that are quantized
    exclude = ["*/head/*"]                      # selectors of nodes that stay float

    [recovery]                                  # what wins accuracy back, see `qdqtool.presets.recovery`
    round_weights = true

A preset that differs from another in a few keys says only those, with ``extends = "8a8w"`` (or ``"./other.toml"``, looked for
beside the file): tables are laid over key by key, a list takes the place of the other's, ``[]`` takes it away; ``before =
"split-hard-swish,@before"`` puts a pass before those that the other has there. ``[refuses]`` says
what may not be asked for beside it: ``per_axis = "the chip shifts a whole tensor by one power of two"``.

Every number and choice carries a comment with its source."""

from __future__ import annotations

from qdq_passes.core.toml_registry import TomlRegistry

#: Where presets are looked up by name.
PRESETS = TomlRegistry("presets", "qdqtool.presets")
