"""Small clients of the libraries that have no command of their own: `python -m bench.clients.NAME NAMES COMMAND`.

NAMES is a file with a host in each line; a host that stands there twice is given two tasks.  All of them end with 0
when every task did.
"""
