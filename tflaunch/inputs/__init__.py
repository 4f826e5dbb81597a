"""What people write: hostfile and job file with positions, times, sizes, names, patterns."""
