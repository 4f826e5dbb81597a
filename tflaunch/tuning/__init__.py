"""Which layout of a run's tasks is the fastest: it is tried, not computed.

layouts.py     which layouts there are: numbers of ps and workers, where they run, their threads
halving.py     which of them each round tries, and with how many steps
step_rates.py  steps in a second, from the lines that the tasks print
prediction.py  what the layouts measured so far say of one that is not
tried.py       what is known of each layout, and the file that keeps it
"""
