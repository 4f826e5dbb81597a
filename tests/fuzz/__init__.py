"""Every parser against input that nobody would write: a few examples in the suite, minutes with scripts/fuzz.

`targets` has them all as data.  What was once found lies in cases/TARGET/, one file each, and is tried in every run.
"""
