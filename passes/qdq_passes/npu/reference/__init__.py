"""The reference of NPU programs in numpy: the oracle, apart from kernels and lowering on purpose."""
