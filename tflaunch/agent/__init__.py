"""The agent, the process on a host: sent over the wire, nothing installed, standard library only, Python 3.8+.

    loader      runs first: finds the other modules in the host's store, or asks the launcher for them
    main        serves the channel, as the agent of a new run or as a visit
    guard       the agent's parent: sweeps what is left, whatever ended the agent; ends one that hangs
    strays      what is left where agent and guard were both killed: whoever comes next ends it
    daemon      the agent of a run: one loop, from its first viewer to the end of the run on this host
    viewer      those who are attached: launcher, other viewers, the coordinator
    requests    one handler for each type of message, in the class of its subject:
    holdings    ... ports, GPU leases and a place in the queue
    watching    ... what viewers see: logs, outputs, TensorBoard
    detached    ... the run without its launcher
    entrusted   the door for the coordinator; on one host, the coordinator itself as a child process
    coordinator decides for a detached run, by the same rules as a launcher
    visit       a short-lived agent for any run of this user: lists and ends runs, cleans, looks at GPUs
    ledger      what is known of each run, from its directory and from /proc
    archive     shows a viewer a run whose agent has ended
    facts       what this host is: addresses, memory, disk, GPUs
    host_check  what on this host may harm a run, for `tflaunch check`
    processes   processes as /proc shows them: by descent, by a run's marks; how to kill all of them
    foreign     what may never return, such as a look at a dead file server, in a process with a time limit
    aside       work that takes long, in a process of its own

    tasks/      the tasks: staging, team, task, logs, look, setup, environments, containers, stacks
    gpus/       leases, the queue for GPUs, whether GPUs are free after the run
    files/      run directories, journal, the store of shipped code, outputs, removal
    net/        the channel, held ports, the dial check, connections between agents, TensorBoard

What it needs, each with a sentence of its own when it is missing: (1) sshd runs a command, (2) there is a POSIX `sh`
and a python3 >= 3.8 (tflaunch.sessions.payload), (3) the channel carries bytes, whatever a login shell prints first
(wire.MAGIC), (4) /proc is there, (5) the run directory can be made and written (files.rundir).
"""
