"""What makes text that people read; pure, imports nothing of tflaunch's.

safe.py     what may be shown of a text from elsewhere; shipped to hosts
numbers.py  numbers with their nouns and verbs; shipped to hosts
lines.py    whole lines, made of the bytes of a log
times.py    how long, how long ago, when
extras.py   what to type for a package that tflaunch does not bring
"""
