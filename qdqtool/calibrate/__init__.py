"""Calibration: sample data → statistics of each tensor → ranges."""
