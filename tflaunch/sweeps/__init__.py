"""A run whose tasks are the trials of a search."""
