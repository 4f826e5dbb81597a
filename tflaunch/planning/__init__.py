"""From a job, hosts and what their agents said of them to the complete request for every host; no I/O, no clock.

inventory       what the agents said of their hosts and GPUs
gpu_choice      which GPUs the options allow, and which lie near each other
taking          how much a run would take where the user gave no number of workers
usable_hosts    which hosts a job can use at all; what changes when some are absent
gpu_supply      the GPUs that hosts have for the roles of a job, and the errors where they are too few
gpu_words       words for the GPUs that are there, in those errors
gpu_limits      how many GPUs a user may hold, on a host and on all of them
plan            where every task runs: `plan_cluster`
plan_notes      what the plan tells beside that
spare_moves     where the tasks of a detached run may move when a host is lost, with the requests for that
cluster_plan    the plan as data: TaskPlan, ClusterPlan
addresses       what tasks dial each other by: addresses, ports, network interfaces
task_commands   argv and environment of a task
ranks           which tasks have ranks
filling         what placeholders such as `{index}` stand for
environments    virtual environments, conda and `setup:`, as shell text for a task
binding         which cores each task is bound to
required_gpus   `--require-gpu`: whether the plan gives GPUs at all
networks        which network the addresses lie on, and a faster one
ways            ways between hosts that are much longer than the others, or lose packets
dial_pattern    which hosts dial which others before the tasks start
dials           what their calls say: what is blocked, and what to do
"""
