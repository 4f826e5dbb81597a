"""Which run has which GPU of this host, and whether a GPU is free again."""
