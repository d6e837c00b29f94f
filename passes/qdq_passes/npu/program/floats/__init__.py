"""What programs compute in floating point: each operator of a unit as steps that round what they read and write."""
