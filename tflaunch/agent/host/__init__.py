"""What this host is made of, for an agent: processes, the run directory, what may never answer.

processes    processes as /proc shows them: by descent, by a run's marks; how to kill all of them
host_processes  the processes of this host from look to look
load         what this host does beside the run
foreign      what may never return, such as a look at a dead file server, in a process with a time limit
mounts       which file systems are mounted, and which need no file server
rundir       the run directory; failures as sentences for the user
reserve      room for the agent's own files on a disk that fills up
journal      the events of a run, numbered
python_site  the directory by which a task's Python prepares itself to tell its stacks
container    tasks in containers of podman or docker
guard        the agent's parent: purges what is left, whatever ended the agent; ends one that hangs
strays       what is left where agent and guard were both killed: whoever comes next ends it
recipient    who gets messages, as those know him who stand below viewer.py
cores        the cores by NUMA node, and processes that start on some of them
aside       work that takes long, in a process of its own
"""
