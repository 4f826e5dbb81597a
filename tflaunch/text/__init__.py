"""What makes text that people read; pure, imports nothing of tflaunch's; shipped to hosts.

safe.py     what may be shown of a text from elsewhere
lines.py    whole lines, made of the bytes of a log
numbers.py  numbers with their nouns and verbs
times.py    how long, how long ago, when
"""
