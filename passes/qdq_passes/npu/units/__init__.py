"""Units: what one operator of an integer NPU computes, with the pairs around it."""
