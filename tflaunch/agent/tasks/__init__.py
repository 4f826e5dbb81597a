"""The tasks of a run on this host: how each is started, watched, looked at and ended.

team         all tasks of the run; each exit goes to the journal
task         one task: a shell that waits at a gate, then the program
gate         that shell, and the pipes to it
preloading   a process that has imported modules, and forks for trials
shell        the file of shell in front of a program: its variables and its setup
rendezvous   at which the tasks of a Horovod program meet
meetings     those of this host, each at the port of a task
keras        whether the program of the tasks gets Keras 3
syntax       whether the Python of the tasks can parse their program
prepare      a virtual environment or an image, before the tasks can be staged
environment  virtual environments, made once for each requirements file and Python
logs         the log of each attempt, read by offset
log_notice   wakes the agent when a log grows
look         what each task is doing now, from /proc, netlink and its log
pace         how fast it goes, and what holds it up: more of a look
disks        what the disks of the host do, and what its programs wait for
dialled_again   whether a task whose connection was reset could have reached its peers
exit_facts   what the host knows about the end of a task that failed
end_facts    which of it an exit carries
oom_kills    how often the kernel has killed processes for want of memory
masks        which of its processes see other GPUs than it was given
log_signs    counts the lines of a log that say something of their own
inspection   what every thread of a task waits in
live_stacks  the stacks of programs that go on
asked        one program that is asked for them: by its thread, else by signals to what sleeps
threads      which threads of a process sleep, which compute; a signal to one
stack_text   what a Python writes of its threads
stacks       has a program that hangs write its stacks
"""
