"""What a run and a command tell: to programs as JSON, and to whatever shows a run; nothing here draws.

reporter.py        Reporter: the methods with which the rest of tflaunch shows a run
json_lines.py      JsonReporter: one JSON object a line; json_sweep.py: the same for a sweep
log_keeping.py     LogReporter: whole lines of task logs, progress bars, a task's end after its output
writer.py          the one thread that writes to stdout and stderr

json_events.py     every event of --json with its fields
json_documents.py  every document of --json; json_things.py what is in it, json_reports.py in those of report and tune
json_objects.py    the same as data, for the documentation and the tests; schemas/ has their JSON Schemas

kept_events.py     the events that the record of a run keeps
run_reports.py     the report of a run, from its record; reported_tasks.py: of which tasks, or trials
run_timeline.py    what happened in it; run_verdicts.py: what stands out
chrome_trace.py    the report for Perfetto; openmetrics.py: for Prometheus

failed_hosts.py    what is said of hosts that failed
log_tail.py        what the last lines of a task's log say about its failure
startup_lines.py   the lines that TensorFlow writes at each start
"""
