"""The process on the host: shipped over the wire, nothing installed, standard library only, Python 3.8+.

    channel   the exec'd process makes it clean, gives it to the daemon, and waits
    guard     parent of the daemon; sweeps what is left, whatever ended the daemon
    daemon    one loop: the lease, and the end; its viewers, their requests, and the team of tasks
    visit     looks after any run, with or without a living daemon: lists and ends them (ledger), cleans (garbage)

What it takes for granted, each with its own sentence when it fails: (1) sshd runs a command, (2) a POSIX `sh`
and a python3 >= 3.8 are found (tflaunch.sessions.payload), (3) the channel carries bytes, whatever a login shell
prints first (wire.MAGIC), (4) /proc is there, (5) the run directory can be made and written (rundir).
"""
