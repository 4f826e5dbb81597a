"""Which run has which GPU of this host.

gpu_driver    asks NVML, in a child process that may hang or crash
driver_child  that process, from outside and from inside
gpu_loads     how the GPUs are used, and their Xids, as that process sees them
leases        locks on GPUs and MIG instances, which all users see
lease_files   the files of theirs that all users share
locks         what a lock is, and who has one
tickets       the queue of runs that wait for GPUs
ticket_files  its files
limit         how many GPUs of this host one user may hold
freed         whether the run's GPUs are free again after its end
use           how the run uses its GPUs while it runs
"""
