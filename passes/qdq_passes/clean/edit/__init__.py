"""Running a pass of a library as one of ours."""
