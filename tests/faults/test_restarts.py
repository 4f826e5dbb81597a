"""Runs that start again after a fault: what is left of the first attempt, and the lines of each."""

from __future__ import annotations

import pytest

from tests.faults import NOTHING, Trial, begins_with, count
from tests.support.bed import BedHost
from tests.support.patience import until


def whole_logs(trial: Trial, task: str, attempts: int, gone: BedHost | None = None) -> list[int]:
    """How many lines each attempt has; its record is its log, or on the host that is `gone` the beginning of it."""
    counted = []
    for attempt in range(attempts):
        file = f"{task.replace('/', '-')}{f'.{attempt}' if attempt else ''}.log"
        record = trial.record / "logs" / file
        counted.append(count(task, record))
        for host in trial.hosts:
            for truth in host.disk.glob(f"tflaunch-*/{trial.run_id}/*/logs/{file}"):
                assert begins_with(truth, record), f"{file}: record and log on {host.name} differ"
                assert host is gone or truth.stat().st_size == record.stat().st_size, file
    return counted


@pytest.mark.fault(
    "a worker killed, with --restarts 1", "it starts again in its place, and the run succeeds", NOTHING
)
def test_task_starts_again(trial: Trial) -> None:
    trial.up(2)
    trial.start(lines=400, more=["--restarts=1", "--restart=task"])
    trial.now()
    trial.task("worker/0").kill()
    until((trial.record / "logs/worker-0.1.log").exists, "the second attempt")
    trial.after("back")
    trial.check(0, logs=False)
    first, second = whole_logs(trial, "worker/0", 2)
    assert first < second == 400


@pytest.mark.parametrize("how", ["power", "link"])
@pytest.mark.fault(
    "a host without power, or cut off for ever, with --restarts 1 and a host in --spares",
    "the run is planned anew with the other host and succeeds; on the old one the agent ends its tasks",
    "what the old host's tasks printed in the last moment",
)
def test_spare_host(trial: Trial, how: str) -> None:
    hosts = trial.up(3)
    patterns = [
        "--worker-hosts=host[1-3]",
        "--ps-hosts=host[1-3]",
    ]  # they keep their meaning when one is lost
    more = ["--restarts=1", "--restart=cluster", "--spares=host3", *patterns]
    trial.start(lines=1500, lease_s=8, more=more)
    host = trial.placement["worker/0"]
    assert {host, trial.placement["ps/0"]} == {*hosts[:2]}
    trial.now()
    (trial.bed.power_off if how == "power" else trial.bed.cut)(host)
    until(hosts[2].processes, "tasks on the other host")
    trial.after("back")
    trial.check(0, logs=False, sockets_left_on=[host] if how == "power" else [])
    first, second = whole_logs(trial, "worker/0", 2, gone=host)
    assert first < second == 1500
