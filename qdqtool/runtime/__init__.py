"""onnxruntime behind a typed facade: sessions, taps on inner tensors, the numeric check of passes."""
