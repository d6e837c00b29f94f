"""The work of `quantize --goal`: what is sought in, how it is judged, what is made of the best."""
