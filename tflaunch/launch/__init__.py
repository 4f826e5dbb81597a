"""One run: from a request to its exit code."""
