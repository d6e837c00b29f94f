"""Running a folder of static decoder graphs."""
