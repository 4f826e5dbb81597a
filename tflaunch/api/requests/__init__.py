"""From options to requests, for tflaunch.launch and tflaunch.sweeps to carry out.

run.py, up.py, sweep.py    the request of each verb that starts tasks
roles.py, job_parts.py     the parts of its job
what_to_fetch.py           which files to fetch
which_hosts.py             the hosts that are meant
configured.py              what the configuration and a job file say
"""
