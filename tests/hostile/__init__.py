"""A host that has been broken into: it speaks to the launcher through a program that rewrites what its agent says.

python -m tests.hostile.record          # record real agents anew: recordings.json
scripts/attack --only facts             # play everything that could be said against everything that listens
"""
