"""The user's program: what its text says, which files go along, and how they get to the hosts."""
