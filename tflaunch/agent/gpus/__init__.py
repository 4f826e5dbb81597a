"""Which run has which GPU of this host.

driver   asks NVML, in a child process that may hang or crash
leases   locks on GPUs and MIG instances, which all users see
tickets  the queue of runs that wait for GPUs
limit    how many GPUs of this host one user may hold
freed    whether the run's GPUs are free again after its end
use      how the run uses its GPUs while it runs
"""
