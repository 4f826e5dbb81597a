"""From facts and logs to what is wrong and what to type; shipped to hosts.

hangs.py       which task waits for which, and why, while a run goes on
last_error.py  the line of a log that says why its program ended
"""
