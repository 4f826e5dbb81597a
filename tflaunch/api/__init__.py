"""tflaunch for other programs and for notebooks, and for its own command line, which stands on it.

    from tflaunch import api

    with api.run("hosts.yaml", "trainer.py", args=["--epochs", "3"], ps=1, workers=2) as run:
        for event in run:
            if event["event"] == "log":
                print(event["task"], event["line"])
    print(run.wait().status)

`make_plan` and `run` take the options of `tflaunch run` by their names: `--gpus-per-worker 2` is `gpus_per_worker=2`.
What the command line would refuse is refused here with the same words: each error is a TflaunchError with `message`,
`hint` and `exit_code`.  Nothing is asked: where the command would ask, say `yes=True`.

    hostfiles.py        load_hosts, gpus
    running.py          make_plan, run, Run
    known_runs.py       runs, stop
    attached.py         attach, Attached
    watched.py          what a Run and an Attached have in common
    event_feed.py       the events that they give
    following.py        follow a run, over connections of its own
    fetching.py         fetch
    keywords.py         the options, by name and type
    given_keywords.py   from keywords to options
    command_shown.py    from keywords to the command that means the same
    connecting.py       connections to the hosts of a request
    requests/           from options to requests
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tflaunch.api.attached import Attached, NotFollowed, attach
    from tflaunch.api.fetching import fetch
    from tflaunch.api.hostfiles import gpus, load_hosts
    from tflaunch.api.keywords import Keywords
    from tflaunch.api.known_runs import runs, stop
    from tflaunch.api.running import HandedOver, Run, StoppedEarly, make_plan, run
    from tflaunch.documents.json_events import Event
    from tflaunch.hosts import Host, Hostfile
    from tflaunch.planning.cluster_plan import ClusterPlan
    from tflaunch.protocol.errors import ConnectErrors, StopError, TflaunchError
    from tflaunch.protocol.outcome import Outcome
    from tflaunch.runs.fetch_result import Fetched
    from tflaunch.runs.listing import Listing
    from tflaunch.runs.run_states import RunState
    from tflaunch.runs.visits import Finished
    from tflaunch.survey.gpu_overview import Overview

__all__ = [
    "Attached",
    "ClusterPlan",
    "ConnectErrors",
    "Event",
    "Fetched",
    "Finished",
    "HandedOver",
    "Host",
    "Hostfile",
    "Keywords",
    "Listing",
    "NotFollowed",
    "Outcome",
    "Overview",
    "Run",
    "RunState",
    "StopError",
    "StoppedEarly",
    "TflaunchError",
    "attach",
    "fetch",
    "gpus",
    "load_hosts",
    "make_plan",
    "run",
    "runs",
    "stop",
]

_PLACES = {
    **dict.fromkeys(("gpus", "load_hosts"), "tflaunch.api.hostfiles"),
    **dict.fromkeys(("HandedOver", "Run", "StoppedEarly", "make_plan", "run"), "tflaunch.api.running"),
    "fetch": "tflaunch.api.fetching",
    "Event": "tflaunch.documents.json_events",
    **dict.fromkeys(("Attached", "NotFollowed", "attach"), "tflaunch.api.attached"),
    **dict.fromkeys(("runs", "stop"), "tflaunch.api.known_runs"),
    **dict.fromkeys(("Host", "Hostfile"), "tflaunch.hosts"),
    "Keywords": "tflaunch.api.keywords",
    "ClusterPlan": "tflaunch.planning.cluster_plan",
    **dict.fromkeys(("ConnectErrors", "StopError", "TflaunchError"), "tflaunch.protocol.errors"),
    "Outcome": "tflaunch.protocol.outcome",
    "Fetched": "tflaunch.runs.fetch_result",
    "Finished": "tflaunch.runs.visits",
    "Listing": "tflaunch.runs.listing",
    "RunState": "tflaunch.runs.run_states",
    "Overview": "tflaunch.survey.gpu_overview",
}


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


if not TYPE_CHECKING:  # a type checker then finds a name that is not there

    def __getattr__(name: str) -> Any:
        """Load what is asked for; the command line needs little of it."""
        if name not in _PLACES:
            raise AttributeError(f"module 'tflaunch.api' has no attribute {name!r}")
        value = globals()[name] = getattr(importlib.import_module(_PLACES[name]), name)
        return value
