"""NPU targets, one TOML file each: ``acme_npu.toml`` is called ``--target acme_npu``.

To describe a chip, put such a file here, into ``targets/`` of a folder given with ``--path``, or pass it as
``--target ./acme_npu.toml``; ``schema.json`` beside this file lists every key, for editors that check while one types:

    description = "Acme NPU: 8-bit convolutions"
    version = "1"
    traps = [                                   # what the chip does silently wrong or slowly: `check --target` looks for it
        "softmax-symmetric-output",             # measured: every value 128 steps too low
        {rule = "unreliable-operator", types = ["CumSum"], elements = ["uint8"]},
    ]

    [[op]]                                      # a rule: one or more operators that take the same
    types = ["Conv", "com.acme::FancyConv"]     # standard operators bare, others as domain::type

    [[op.scheme]]                               # one accepted combination; several are alternatives
    activations = ["int8", "uint8"]             # storage types of what flows through
    weights = ["int8"]                          # of constants; without this key none may be quantized
    bias = ["int32"]                            # likewise
    symmetric = ["weights", "bias"]             # operands whose zero point must be the middle of their type
    granularity = ["per-tensor", "per-axis"]    # of weights and bias; per-tensor when left out
    scales = "any"                              # or "pow2": powers of two only

Every number and limit carries a comment with its source and how sure it is: measured, documented or assumed."""
