"""Faults at random: what is run, what befalls it and when, and what must hold after it.

schedule.py   a schedule as data and as one line of text; the one that follows from a seed
faults.py     each fault: how it is done and made good again, and with which codes a run may end by it
play.py       carries a schedule out on a bed
verdict.py    what must hold afterwards, and which exit codes, records and words may go together
"""
