"""tflaunch for other programs and for notebooks: what the commands do, as functions.

    from tflaunch import api

    with api.run("hosts.yaml", "trainer.py", args=["--epochs", "3"], ps=1, workers=2) as run:
        for event in run:
            if event["event"] == "log":
                print(event["task"], event["line"])
    print(run.wait().status)

`plan` and `run` take the options of `tflaunch run` by their names: `--gpus-per-worker 2` is `gpus_per_worker=2`.  What
the command line would refuse is refused here with the same words: each error is a TflaunchError with `message`, `hint`
and `exit_code`.  Nothing is asked: where the command would ask, say `yes=True`.

    keywords.py   the options, by name and type
    running.py    make_plan, run, Run
    hosts.py      load_hosts, gpus
"""

from tflaunch.api.hosts import gpus, load_hosts
from tflaunch.api.keywords import Keywords
from tflaunch.api.running import Event, HandedOver, Run, StoppedEarly, make_plan, run
from tflaunch.hosts import Host, Hostfile
from tflaunch.planning.cluster_plan import ClusterPlan
from tflaunch.protocol.errors import TflaunchError
from tflaunch.protocol.outcome import Outcome
from tflaunch.runs.fetch_result import Fetched
from tflaunch.survey.gpus import Overview

__all__ = [
    "ClusterPlan",
    "Event",
    "Fetched",
    "HandedOver",
    "Host",
    "Hostfile",
    "Keywords",
    "Outcome",
    "Overview",
    "Run",
    "StoppedEarly",
    "TflaunchError",
    "gpus",
    "load_hosts",
    "make_plan",
    "run",
]
