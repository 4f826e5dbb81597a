"""Whether the pages are true: every command in README.md and docs/ is one that tflaunch knows, and is run for real.

pages.py    finds commands, output, files and inline code in the pages
known.py    asks tflaunch's own parser whether it knows a command, an option
world.py    the lab of the pages on the test bed: gpu01 to gpu03 with four GPUs each, storage, a user's directory
plays.py    which commands cannot be run as they stand, and why; what stands for what a page names by example
shapes.py   output with its names, numbers and times taken out

The fast half is tests/unit/test_pages.py.
"""
