"""What `make test-all` adds: parts that need more than Python, make, git and a C++ compiler."""
