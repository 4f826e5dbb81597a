"""What both ends say, and what both ends use; shipped to hosts.

wire.py           the messages between launcher and agent, in one table, and their frames
messages.py       the fields of every message, and the check of what the other end sends
facts.py          every fact of a host and its GPUs: name, type, meaning
fields.py         kinds of fields: their types and limits
events.py         what happens to a run, for its state machine
outcome.py        how tasks and runs end
job.py            what the user asked to run: tasks, roles, program
errors.py         every error that a user can see, with its exit code
moves.py          requests in which addresses are left open, for runs that may move to spares
dialling.py       the dial check: connects to the agents of other hosts, and proves who answered
tcp_info.py       what the kernel knows of a TCP connection
tcp_streams.py    TCP connections (TensorBoard's) carried in the frames of a wire
selector.py       the event loop's selector: epoll, or what the system has
code_manifest.py  digests by which shipped code is named
ancestry.py       whether another user could replace a directory
directories.py    directories that other users may write to: judged and changed by descriptor
removal.py        the size of a directory tree, and its removal
machine.py        this machine: its name, its C library, its limits
light_stdlib.py   `signal`, `socket` and `sha256` without what makes them slow to import
"""
