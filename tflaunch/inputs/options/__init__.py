"""What can be asked for: the options of the verbs, as the command line, the files and `api.run` have them.

declared.py                      how a dataclass declares options
groups.py, job_groups.py         the options, in groups
of_run.py, of_up.py, of_sweep.py all options of a verb
of_others.py                     options of verbs that start no tasks
values.py                        parsers of their values
in_files.py, file_values.py      their keys in job file and configuration, and how files have the values
given.py                         the values of one command, or of one call
"""
