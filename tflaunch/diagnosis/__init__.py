"""From facts and logs to what is wrong and what to type; shipped to hosts.

rule.py        what a rule of the watchdog is, and the run that the rules watch over
thresholds.py  from when on the rules speak; --threshold changes them
frames.py      which frame of a Python stack is the user's own, and how to write it
signs.py       what lines of a log say about their task
hangs.py       which task waits for which, and why, while a run goes on
lost_packets.py  between which hosts packets are lost in mid-run
lasting.py     the base of rules that tell what has lasted
strangers.py   who listens on another port than the plan's, or calls addresses that are no task's
unready.py     whose variables nobody initialises, and whose port stays shut
lost_peers.py  who stands still since a peer has ended
unshared.py    an evaluator whose checkpoints are written on another host
no_gpu.py      who was given a GPU and does not use it
gpu_waits.py   which task holds up GPUs that wait for one another
nan_loss.py    whose loss stays NaN
stillness.py   who keeps the others waiting when nothing moves
inspections.py  what the agents said of their threads and stacks
standstills.py  what stands still: all tasks, all but a few, or one
movement.py    what a task has moved between looks
standing.py    where the threads of a task stand, and what that means
slowness.py    what slows down a run that goes on
paces.py       how fast tasks go, from looks
stragglers.py  workers of an asynchronous run that are slower than the others
lockstep.py    the worker that the others wait for in each step
stack_rounds.py  where the main threads of workers stand, asked a few times within a minute
slow_input.py  workers that wait for their input; the one that the others wait for in session.run
slow_ps.py     parameter servers that hold up their workers
slow_hosts.py  hosts that lose packets, swap, or are short of memory
slow_disks.py  disks that take far longer than usual
slow_gpus.py  GPUs that are held down, have narrow links, or do little
xids.py      errors of GPUs that their driver tells of
slower.py      a run whose steps take longer than before
steps.py       the step that a line of a log names
verdict.py     who is the odd one out of tasks that stand still, in words
"""
