"""The agent, the process on a host: sent over the wire, nothing installed, standard library only, Python 3.8+.

Each layer imports only from those below it; the highest first:

    loader      runs first: finds the other modules in the host's store, or asks the launcher for them
    main        serves the channel, as the agent of a new run or as a visit
    daemon      the agent of a run: one loop, from its first viewer to the end of the run on this host
    visit       a short-lived agent for any run of this user: lists and ends runs, cleans, looks at GPUs
    requests    one handler for each type of message, in the class of its subject:
    staging     ... tasks: prepare, stage, release, add, restart, stop, look
    holdings    ... ports, GPU leases and a place in the queue
    watching    ... what viewers see: logs, outputs, TensorBoard
    detached    ... the run without its launcher
    entrusted   the door for the coordinator; on one host, the coordinator itself as a child process
    coordinator decides for a detached run, by the same rules as a launcher
    tally_file  what the tasks of a detached run have used, kept by its coordinator
    peer_connections its connections to the agents
    tensorboard_server TensorBoard beside the tasks, reached by the wire
    archive     shows a viewer a run whose agent has ended
    garbage     what runs leave, and its removal
    host_check  what on this host may harm a run, for `tflaunch check`

    viewer      those who are attached: launcher, other viewers, the coordinator
    ledger      what is known of each run, from its directory and from /proc
    host_facts  what this host is: addresses, memory, disk, GPUs
    slot        where an engine has given this place for a while: when that ends, and which GPUs belong to it

    tasks/      the tasks: team, task, logs, look, setup, environments, stacks
    gpus/       leases, the queue for GPUs, whether GPUs are free after the run
    net/        the channel, held ports, the dial check, connections between agents
    files/      the store of shipped code, outputs
    host/       processes, the run directory, journal, containers; the guard

What it needs, each with a sentence of its own when it is missing: (1) sshd runs a command, (2) there is a POSIX `sh`
and a python3 >= 3.8 (tflaunch.sessions.payload), (3) the channel carries bytes, whatever a login shell prints first
(wire.MAGIC), (4) /proc is there, (5) the run directory can be made and written (host.rundir).
"""
