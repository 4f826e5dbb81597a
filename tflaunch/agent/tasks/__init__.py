"""The tasks of a run on this host: how each is started, watched, looked at and ended."""
