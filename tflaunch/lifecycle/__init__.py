"""How a run goes, from the release of its tasks to its exit code; pure, shipped to hosts.

states.py       the state machine of a run: step(state, event) -> (state, actions)
ending.py       how a run and a sweep end: the rules that both state machines share
actions.py      what a state machine wants done
driver.py       turns messages into events, and carries out actions; for a launcher and a coordinator
links.py        which hosts are heard of, and when one is dialled again
watchdog.py     asks the agents what their tasks do; feeds diagnosis/hangs.py and time_limits.py
tallies.py      what each task has used so far, from the looks at it
time_limits.py  --timeout, --startup-timeout, --stall-timeout
memory.py       what a coordinator leaves to the next one
"""
