"""The command line: parse options, call the API, render, exit code. The only place for click and rich."""
