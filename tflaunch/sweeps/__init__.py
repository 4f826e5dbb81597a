"""A sweep: a run whose tasks are the trials of a search.

trials.py       which trials there are: the values of their parameters, from --grid, --random or a file
whole_sweep.py  one sweep from the hostfile to the outcome
resume.py       which sweep on record goes on, and whether its trials can be compared
seats.py        where trials can run, and the request for each of them
first_seats.py  the seats that a sweep begins with, at once or in its turn in the queue
lifecycle.py    the state machine of a sweep
controller.py   applies events to it; updates logs, results and the display
trial_looks.py  what the trials use while they run, for the report
curves.py       the values of a metric, and the rule of --stop-below
optuna_study.py  Optuna, for --sampler tpe and --pruner
recovery.py     trials that succeeded while no launcher of the sweep was alive
scoring.py      metrics of trials that have ended, read from their logs
results.py      metrics from logs, and the files that keep the results
"""
