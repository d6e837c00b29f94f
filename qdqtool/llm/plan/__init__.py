"""What a split will be: shapes, parts, names, schedules."""
