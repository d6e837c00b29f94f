"""The bridge to onnx-graphsurgeon."""
