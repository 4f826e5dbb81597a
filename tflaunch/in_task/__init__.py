"""Programs that run in a task's own Python: the check's program, the bare TensorFlow server."""
