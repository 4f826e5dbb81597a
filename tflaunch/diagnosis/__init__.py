"""From facts and logs to what is wrong and what to type; shipped to hosts.

rule.py        what a rule of the watchdog is, and the run that the rules watch over
thresholds.py  from when on the rules speak; --threshold changes them
hangs.py       which task waits for which, and why, while a run goes on
last_error.py  the line of a log that says why its program ended
"""
