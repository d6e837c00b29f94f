"""Evaluators. `exact`: a node of constants in numpy, only where every runtime computes the same bits. `NodeEvaluator`: any one
node, by onnx's reference, or its shapes. `walk`: a whole graph of static inputs, shapes and constants in one pass, by the two."""
