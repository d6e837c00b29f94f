"""Gradients of a graph, as further nodes of it: what onnxruntime computes forwards it computes backwards, too."""
