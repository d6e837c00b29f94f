"""Files in and out: models, artifacts, feeds. The only room that opens files."""
