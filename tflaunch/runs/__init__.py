"""Runs seen from outside: records, states, logs, fetch, stop, clean, TensorBoard, traces.

run_ids.py            the ids of runs: what is one, and a new one
run_names.py          the names that users give runs
record.py             the launcher's record of one run
gone.py, kept.py      runs whose slots are over: their end, and what this machine has kept of them
record_files.py       where records lie, and how their files are read, written and locked
record_logs.py        the launcher's copies of logs, in a record
samples.py            what the tasks of a run used, thinned out, in its record
sampling.py           makes samples of what the agents' looks say
host_samples.py       what its hosts have kept while no launcher was there
record_list.py        all runs on record, each with how it stands
told.py               which sentences the user was told before
hidden_values.py      command lines and plans without the values of the user's variables

visits.py             short-lived agents on hosts, which list runs, end them and remove what they left
run_states.py         the state of a run, of its tasks and of its part on each host; which run a user means
progress.py           how far a task is, as its log tells
listing.py            puts together what several hosts say of their runs

stack_looks.py        where the tasks of a run are just now
detaching.py          asks the launcher of a run to hand it over to its hosts
wanted.py             which part of the logs of a run a user wants to see
follow.py             follows a run: its events and logs come from its hosts
looking.py            looks at the tasks of a run, again and again
heard.py              what they have said so far, and how the run ended by it
tensorboard.py        TensorBoard of a run, on one of its hosts
tunnel.py             the port of this machine that leads there, or to the tasks' own
profiling.py          traces that TensorFlow takes of its tasks, asked at the cluster's ports
profiler_messages.py  what is said there

clean.py              which runs `clean` removes, and from where
clean_records.py      what it does with the records of this machine

fetch.py              brings files of a run here: one fetch, from its first request to its last file
fetch_pipeline.py     sends requests to many hosts, several at a time, and again after a lost connection
fetch_requests.py     the requests of a fetch, and the checks of their answers
fetch_search.py       which files the hosts have, which are the same, and where each goes
fetch_transfer.py     brings their content
fetch_part.py         a file of theirs on its way
fetch_destination.py  the directory that they are brought into: nothing is written outside of it
fetch_result.py       what came of a fetch
written.py            what the tasks have written, in a sentence at the end of a run
"""
