"""What lies on this host's disk: run directories, shipped code, journals, outputs, and their removal."""
