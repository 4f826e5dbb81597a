"""`gpus --watch`: what a survey finds, on the terminal."""

from __future__ import annotations

import time
from collections.abc import Iterator

from tflaunch.console.gpu_watch.history import History
from tflaunch.console.gpu_watch.host_rows import Order
from tflaunch.console.gpu_watch.pages import Pages
from tflaunch.console.gpu_watch.state import Look, WatchView
from tflaunch.console.pen import Marks
from tflaunch.console.watch_app import watch
from tflaunch.survey.gpu_overview import Sort, WantedGpus
from tflaunch.survey.survey import Survey

_ORDERS: dict[Sort, Order] = {
    "host": "host",
    "memory": "memory",
    "utilization": "use",
    "temperature": "temperature",
}


def watch_gpus(survey: Survey, wanted: WantedGpus, sort: Sort, every_s: float, marks: Marks) -> None:
    """Show the watch until the user quits.  Raises Stopped for SIGINT and SIGTERM."""

    def looks() -> Iterator[Look]:
        for _ in survey.watch(every_s):
            yield Look(survey.answers(), time.monotonic(), time.time())

    state = WatchView(History(every_s), wanted, order=_ORDERS[sort])
    watch(state, Pages(state, every_s, marks), looks(), survey.stop)
