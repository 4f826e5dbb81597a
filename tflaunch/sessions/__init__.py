"""The launcher's end of the agents.

wires       what the launcher expects of a stream to an agent, and of what opens it (tflaunch.remote)
payload     what is sent to start an agent: the boot line, the loader, the agent's source
process_wire, child, socket_tools a stream over the stdio of a process of this machine, and what any socket needs
session     one agent: messages out, messages in
dialler     opens the wires to many hosts at once, each with an agent on its way through it
group       all agents of a command: one queue, leases, waiting for answers
early_answers  the answers to the first message that hosts give before the launcher needs them
absent_hosts  which of the hosts that are dialled accept no TCP connection
limits      how many hosts this machine can hold connections to
probe       a host that lacks the probe's module gets it
linked      the loop of a command that stays with its hosts and dials lost ones again
log_feed    the logs of the tasks on their way to the launcher
printed_numbers  what programs print with a name: the loss, the step
asking      a question to the user while connections and leases live on
typed_keys  single keys that the user types while a command watches
watcher     what a command shows to the person or program that watches it
"""
