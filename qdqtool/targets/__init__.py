"""NPU targets, one TOML file each: ``acme_npu.toml`` is called ``--target acme_npu``.

To describe a chip, put such a file here, into ``targets/`` of a folder given with ``--path``, or pass it as
``--target ./acme_npu.toml``; ``schema.json`` beside this file lists every key, for editors that check while one types:

    description = "Acme NPU: 8-bit convolutions"
    version = "1"
    policy = "region"                           # or "node", "whole-model": what one unsupported node costs
    traps = [                                   # what the chip does silently wrong or slowly: `check --target` looks for it
        "softmax-symmetric-output",             # measured: every value 128 steps too low
        {rule = "unreliable-operator", types = ["CumSum"], elements = ["uint8"]},
    ]

    [arithmetic]                                # how it computes on integers: docs/adr/0014
    requantize = "shift"
    rounding = "half_up"

    [limits]
    batch = 1

    [[case]]                                    # a verdict on operators of any rule; the first that holds decides
    when = "x.dtype == 'int8' and tail == ['LeakyRelu']"
    verdict = "fallback"                        # or "npu-int", "npu-float", "refused"
    rule = "leaky-relu-int8"
    reason = "{op} with {x.dtype} input and a LeakyRelu behind it is not supported on {target}"
    suggestion = "use uint8"

    [[op]]                                      # a rule: one or more operators that take the same
    types = ["Conv", "com.acme::FancyConv"]     # standard operators bare, others as domain::type; "*": all others
    ranks = [3, 4]                              # dimensions of the first input
    attributes = {auto_pad = ["NOTSET"]}        # values that are taken
    constant_inputs = [1]                       # data that must be known
    otherwise = "refused"                       # where nothing below says something; "fallback" when left out

    [[op.case]]                                 # as above, of these operators
    when = "attr.group > 1 and w.shape[1] > 1"
    verdict = "npu-float"
    rule = "grouped"
    reason = "grouped convolutions are computed in floating point"

    [[op.scheme]]                               # one accepted combination; several are alternatives
    activations = ["int8", "uint8"]             # storage types of what flows through
    weights = ["int8"]                          # of constants; without this key none may be quantized
    bias = ["int32", "float"]                   # likewise; "float": it may stay float
    symmetric = ["weights", "bias"]             # operands whose zero point must be the middle of their type
    granularity = ["per-tensor", "per-axis"]    # of weights and bias; per-tensor when left out
    scales = "any"                              # or "pow2": powers of two only
    compute = "integer"                         # or "float"

    [[engine]]                                  # parts of the chip; verdicts name the first that takes the operator
    name = "matrix unit"
    kind = "int"
    types = ["Conv"]

    [cost]                                      # for the estimate of time; [memory] likewise
    clock_mhz = {value = 800, source = "data sheet", confidence = "documented"}

A family has one root: ``extends = "acme_npu"`` makes a file of what differs. Its rules replace those of the same operators, its
cases come first, keys of its tables replace single keys, a list of traps replaces the whole list.

Conditions are expressions of `qdqtool.targets.expression` over the names in `qdqtool.targets.unit_facts`. A unit is judged by the
limits, the demands of its operator's rule, the cases of all operators, the rule's own, its schemes; the first that says something
decides.

Every number and limit carries a comment with its source and how sure it is: measured, documented or assumed."""

from __future__ import annotations

from qdq_passes.core.toml_registry import TomlRegistry

#: Where targets are looked up by name.
TARGETS = TomlRegistry("targets", "qdqtool.targets")
