"""What operators are: their kinds, inputs, attributes and axes."""
