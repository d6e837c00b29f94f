"""The NPU: what of a model it computes, and the programs it runs."""
