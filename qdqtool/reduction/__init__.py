"""The smallest part of a model that still fails: which parts there are, whether one fails, and the search among them."""
