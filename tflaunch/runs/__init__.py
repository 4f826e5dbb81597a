"""Runs seen from outside: records, states, logs, fetch, stop, clean, TensorBoard."""
