"""What ends of tasks mean, each with its fix: rules, which are data, and what applies them; only the launcher has it.

interpret.py    which rule wins, and its advice
log_end.py      the end of a log, taken apart: what the task said last, and where in the program it was
xid_ends.py     what errors of its GPUs say, of which their driver has told
last_error.py   the line of a log that says why its program ended
known_end.py    what a rule may ask about an end: memory, disks, the processor, versions that differ between hosts
here.py         what this machine knows of a module or a file that a task did not find

end_rule.py     what a rule is
tables.py       all rules, in their order
flags.py  modules.py  libraries.py  gpu_faults.py  out_of_memory.py  files.py  network.py
tensorflow.py  pytorch_jax.py  python.py  shells.py  signals.py       the rules, by subject
"""
