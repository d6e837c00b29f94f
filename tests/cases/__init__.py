"""What tests share to build their cases. A helper that one file uses stands in that file.

A model is said in ONNX text, as in `tests/golden`: what runs and what must come out stands beside it there, and a golden case is the
first choice for anything that a pass does. Where a test needs Python, one of these builds its model:

| to have | use |
|---|---|
| a model of text, in memory or as a file's proto | `small_models.model`, `parsed`; weights that are too long to write are given as arrays |
| the same in a file, and a command run on it | `cli_helpers.write`, `cli` in this process, `process` in its own |
| weights whose numbers do not matter | `small_models.filled`: ones for ``<float[8,8] w>`` |
| a row of operators with int8 pairs between | `small_models.chain` |
| one operator with pairs around it, by its encodings, and what onnxruntime and the reference make of it | `qdq_units.Unit` |
| convolutions and what is beside them with power-of-two positions, in a line each | `positioned.positioned` |
| one QLinear operator; a MatMulNBits with packed weights | `integer_models.Operator`, `packed` |
| what onnxruntime's quantizers write, of the demo's net or of one with every operator they know | `quantized_files` |
| a decoder of one layer with masks and positions as exporters spell them | `small_decoders.decoder` |
| a decoder of one layer or more as exporters trace it, with random weights: shared KV heads or not, two matrices or three, norms of heads | `random_decoders.random_decoder` |
| the folder that `split` writes, the dynamic decoder it comes from, the same in numpy, tokenizers | `tiny_decoder` |
| a model lowered for a target that takes all that can be computed | `lowering.lowered` |
| files that must be refused, weights of a page | `io_helpers` |
| a small float net with samples, as files: convolutions up and down, gates, attention, a recurrence, names that must be quoted | `small_nets.small_net` |
| a record of 1,000 nodes, and it on a page | `records.large_record`, `page_model` |
| a model whose Relu is left out, one of thousands of operators with pairs | `overlays.clamped`, `deep` |
| what `--jobs N` sends to workers, without processes | `packed_workers.without_processes` |
| encodings files, there and back | `encodings_helpers` |
| a document of every command that prints one, and the schema of documents | `documents`, `json_schemas` |

What a model is asked: `small_models.operators`, `names_of` (a role), `checked`, `run`. Programs and modules that other processes import:
`cluster_of_two`, `page`, `search_metrics`, `worker_functions`; `waiting` waits for them; `suggested` follows what `analyze` suggests. Random graphs stand in
`tests/properties`, units of the NPU's operators in `tests/npu/equality`."""
