"""What an agent learns of a driver, asked as an agent asks: by a child process above a simulated NVML library."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from tests.support import ROOT
from tests.support.nvml import Fleet

ASK = """
import json, os, select, signal, sys, time
from tflaunch.agent.gpus.gpu_driver import GpuDriver
driver = GpuDriver()
for line in sys.stdin:
    fleet, question, within_s = json.loads(line)
    if fleet is not None:
        with open(sys.argv[1], "w") as file:
            file.write("".join(each + "\\n" for each in fleet))
    answers = []
    driver.ask(question, within_s, answers.append)
    while not answers:
        look = select.poll()
        if driver.descriptor >= 0:
            look.register(driver.descriptor, select.POLLIN)
        look.poll(20)
        driver.tick(time.monotonic())
    answer, = answers
    told = answer.gpus if question["ask"] == "probe" else None
    calls = driver._child.now()[2]
    print(json.dumps([told, answer.found, answer.failed, answer.problem, driver.pids, driver.xids, calls]), flush=True)
    driver.xids = []
    if "kill" in sys.argv:
        for pid in driver.pids:
            os.kill(pid, signal.SIGKILL)
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
driver.stop()
"""
PROBE = {"ask": "probe", "topology": True}


class Asked:
    """An answer; which processes of the driver's were there then, and how many calls the last one has made so far."""

    def __init__(self, line: str) -> None:
        gpus, found, failed, self.problem, self.pids, self.xids, self.calls = json.loads(line)
        self.probed: dict[str, Any] = gpus
        self.found: dict[int, Any] = {int(key): value for key, value in found.items()}
        self.failed: dict[int, str] = {int(key): why for key, why in failed.items()}

    @property
    def note(self) -> str:
        return str(self.probed["note"])

    @property
    def gpus(self) -> list[dict[str, Any]]:
        return list(self.probed["gpus"])


def ask(
    fleet: Fleet,
    *questions: tuple[Sequence[str] | None, dict[str, Any]],
    within_s: float = 20.0,
    call_s: float = 60.0,
    inside: Sequence[str] = (),
    kill: bool = False,
) -> list[Asked]:
    """Ask one after another, each once the fleet has those lines (None: as before).

    `inside` are words before the command; `kill`: the processes that ask are killed after each question.
    """
    done = subprocess.run(
        [*inside, sys.executable, "-c", ASK, fleet.path, *["kill"][:kill]],
        input="".join(json.dumps([*each, within_s]) + "\n" for each in questions),
        env={**os.environ, "PYTHONPATH": str(ROOT), **fleet.env, "TFLAUNCH_NVML_CALL_S": str(call_s)},
        check=True,
        capture_output=True,
        text=True,
    )
    assert "Traceback" not in done.stderr
    return [Asked(line) for line in done.stdout.splitlines()]
