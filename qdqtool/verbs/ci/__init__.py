"""What continuous integration needs of results: baselines and test cases."""
