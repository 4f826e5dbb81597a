"""One run, from a request to its exit code.

request       what the command line asks of a run
launch        the run as a straight line: plan, start, drive, end
second_try    a start whose connections break is tried once more
servers       the same for `tflaunch up`: servers that run no program
placing       from the request to a plan whose GPUs are held; uses the next three
roll_call     which hosts are up, and whether the run goes on without the others
consent       the user is asked before a run takes much
acquisition   takes the GPUs of the plan, or queues for them
cluster       the agents of the run until there is a plan, and how all of it is ended
starting      from the plan to tasks that run, or to a run that goes on without a launcher
network_check the hosts dial each other before the tasks start
steering      the run while its tasks run
handover      passes the run to a coordinator on its hosts, while its tasks run
afterwards    outputs are fetched, lost hosts are checked
on_end        the user's command, once a run is over
run_watcher   what a run shows to those who watch it
"""
