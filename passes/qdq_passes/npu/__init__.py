"""What an NPU takes: units, partitions, programs, and the reference of their arithmetic. Passes one a file."""
