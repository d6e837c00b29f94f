"""The verbs about an NPU, one a file: what it computes of a model, the model for it, a run on the simulated one."""
