"""`quantize --goal`: what is to be reached, what was tried, and what tells a difference from chance."""
