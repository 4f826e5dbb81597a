"""The user's program: what its text says, which files go with it, and how they get to the hosts.

program.py          finds the program that the user names, and the directory that is its code
interpreter.py      what it runs by: Python, the interpreter of its first line, a shell, or itself
program_place.py    directories that hold more than code: home directories, those of the system

imports.py          which modules it imports from its directory
standard_modules.py which of Python's own modules are hidden by its files
found.py            what was found in such text
every_start.py      the statements that every start of the program comes by
program_reading.py  what its text, and theirs, says of clusters
own_places.py       by which words of its own it learns its place
own_places_told.py  what the user must write for such a program
cluster_words.py    the names in such text that mean something
misplaced_words.py  options of tflaunch among its arguments
job_fitting.py      the flags and ps that the text wants, where the user does not say

bundle.py           the code that is shipped, as the agents take it
code_tree.py        the walk over its directory: what is shipped, and what stays and why
code_size.py        the errors for too much of it
secrets.py          which files are secrets
fetched_mark.py     the mark of what `fetch` brought, which is not shipped back

what_is_shipped.py  tells the user of it, and of what stays
shipping.py         sends each host the files that it lacks
"""
