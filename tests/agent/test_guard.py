"""The guard of an agent that hangs, and what is left where both were killed: strays."""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support import ROOT
from tests.support.agent_over_pipes import Channel, Host, descriptors, kill_both, marked, running, task
from tests.support.patience import until
from tflaunch.agent.host import processes
from tflaunch.agent.host.rundir import RunDirectory


def agents(host: Host) -> dict[str, Any]:
    """What agent.json says."""
    return dict(json.loads((host.directory / "agent.json").read_text()))


def switches(pid: int) -> int:
    """How often that process has waited for something."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt_switches"))


def unread(guard: int) -> int:
    """How many bytes from its agent that guard has still to read."""
    [number] = [number for number, path in descriptors(guard).items() if path.startswith("pipe:")]
    pipe = os.open(f"/proc/{guard}/fd/{number}", os.O_RDONLY | os.O_NONBLOCK)
    try:
        return int(struct.unpack("i", fcntl.ioctl(pipe, termios.FIONREAD, b"\0" * 4))[0])
    finally:
        os.close(pipe)


def listed(host: Host, **wishes: Any) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """What a visit tells of the run, and whose strays it has ended."""
    visit = host.open("visit", run="", host="")
    visit.wait("hello")
    said = visit.ask("list", all=True, answer="runs", **wishes)
    [of_run] = [each for each in said["runs"] if each["run"] == host.run]
    return of_run, said["ended"]


def hung(host: Host, lease_s: float) -> Channel:
    """A run whose agent hangs while its task runs."""
    channel = host.start()
    running(channel, task("sleep", "600"))
    channel.send("renew", lease_s=lease_s)
    channel.ask("clock", sent=0.0, answer="clock")  # by then it has told its guard of the lease
    os.kill(agents(host)["pid"], signal.SIGSTOP)
    until(lambda: not unread(agents(host)["guard"]), "the guard to have heard that")
    return channel


def test_an_agent_that_hangs_is_ended_with_its_tasks_when_the_lease_is_over(host: Host) -> None:
    hung(host, 1.0)
    until(lambda: not marked(host.run), "the end of the task")
    about = agents(host)
    until(lambda: not processes.alive(about["guard"], about["guard_start"]), "the guard's end")
    assert not processes.alive(about["pid"], about["start"])
    assert not (host.directory / "agent.sock").exists()
    reason = host.attach(after=0, logs={}, client="").wait("gone")["reason"]
    assert reason.startswith("its agent gave no sign of life for")
    assert listed(host)[0]["why"] == reason


def test_time_in_which_the_guard_was_stopped_too_does_not_count(host: Host) -> None:
    """As where a container is paused: both go on, and all is well."""
    lease_s = 4.0
    channel = hung(host, lease_s)
    about = agents(host)
    os.kill(about["guard"], signal.SIGSTOP)
    before = switches(about["guard"])
    channel.send("renew", lease_s=lease_s)  # the launcher was not stopped
    time.sleep(1.5 * lease_s)
    os.kill(about["guard"], signal.SIGCONT)
    until(lambda: switches(about["guard"]) > before + 1, "the guard to look")
    os.kill(about["pid"], signal.SIGCONT)
    assert channel.ask("clock", sent=1.0, answer="clock")["sent"] == 1.0
    assert marked(host.run)


def test_a_guard_that_cannot_write_what_it_found_leaves_no_socket_and_no_traceback(host: Host) -> None:
    channel = host.start()
    running(channel, task("sleep", "600"))
    about = agents(host)
    (host.directory / f"guard.json.{about['guard']}.new").mkdir()  # as a disk that takes nothing
    os.kill(about["pid"], signal.SIGKILL)
    until(lambda: not processes.alive(about["guard"], about["guard_start"]), "the guard's end")
    assert not marked(host.run)
    assert not (host.directory / "agent.sock").exists()
    said = (host.directory / "agent.log").read_text()
    assert "guard.json" in said
    assert "Traceback" not in said


def unfinished(host: Host) -> list[str]:
    """What is there of files that processes of the run have not written to their end."""
    return sorted(path.name for path in host.directory.rglob("*.new"))


def test_a_file_that_a_killed_agent_was_writing_goes(host: Host) -> None:
    """Also the one that a child of it was writing; but not what another agent of the run may write just now."""
    running(host.start(), task("sleep", "600"))
    about = agents(host)
    [child] = [each.pid for each in marked(host.run) if each.parent == about["pid"]][:1]
    written = {f"agent.json.{about['pid']}.new", f"plan.json.{child}.new", f"holds.json.{os.getpid()}.new"}
    # Whoever opens a FIFO to write waits for a reader: so the agent is in the middle of it.
    os.mkfifo(host.directory / f"agent.json.{about['pid']}.new")
    (host.directory / f"plan.json.{child}.new").write_text("{")
    (host.directory / f"holds.json.{os.getpid()}.new").write_text("{")
    (host.directory / "python").mkdir(exist_ok=True)
    (host.directory / f"python/sitecustomize.py.{about['pid']}.new").write_text("")
    assert written < {*unfinished(host)}
    os.kill(about["pid"], signal.SIGKILL)
    until(lambda: not processes.alive(about["guard"], about["guard_start"]), "the guard's end")
    assert unfinished(host) == [f"holds.json.{os.getpid()}.new"]


def test_whoever_comes_next_removes_what_agent_and_guard_were_writing(host: Host) -> None:
    running(host.start(), task("sleep", "600"))
    about = agents(host)
    kill_both(host.directory)
    (host.directory / f"guard.json.{about['guard']}.new").write_text("{")
    listed(host)  # which only looks
    assert unfinished(host)
    listed(host, tidy=True)
    assert not unfinished(host)


KILLED_IN_A_WRITE = """\
import os, signal, sys
from tflaunch.agent.host.rundir import RunDirectory

directory = RunDirectory(*sys.argv[1:4])
directory.create()
directory.write("plan.json", {"whole": 1})
os.rename = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
directory.write("plan.json", {"whole": 2})
"""


def test_a_file_of_the_run_directory_is_replaced_in_one_step(tmp_path: Path) -> None:
    directory = RunDirectory(str(tmp_path / "runs"), "run-abcdef", "h1")
    words = [sys.executable, "-c", KILLED_IN_A_WRITE, directory.parent, directory.run, directory.host]
    done = subprocess.run(words, cwd=ROOT, check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL
    assert directory.read("plan.json") == {"whole": 1}
    assert [*Path(directory.path).glob("*.new")]
    directory.close()
    assert not [*Path(directory.path).glob("*.new")]


def test_whoever_comes_next_ends_what_a_dead_agent_has_left(host: Host) -> None:
    running(host.start(), task("sleep", "600"))
    kill_both(host.directory)
    entry, ended = listed(host)  # which only looks
    assert (entry["state"], ended) == ("strays", [])
    entry, ended = listed(host, tidy=True)
    assert entry["state"] == "lost"
    [of_run] = ended
    assert of_run["run"] == host.run
    assert "sleep" in of_run["killed"][0]
    assert "its agent and guard were killed" in entry["why"]
    assert not marked(host.run)
    assert listed(host, tidy=True)[1] == []


def test_the_agent_of_another_run_ends_what_a_dead_agent_has_left(host: Host) -> None:
    running(host.start(), task("sleep", "600"))
    kill_both(host.directory)
    other = host.open("start", run=f"{host.run}-other")
    other.wait("hello")
    assert marked(host.run)
    other.ask("probe", ports=None, count=1, lease=False, answer="facts")
    assert not marked(host.run)
    other.leave()


@pytest.mark.parametrize("known", ["machine", "namespace", "start", "guard_start", "alive", "guard alive"])
def test_nothing_is_ended_whose_agent_may_live(host: Host, known: str) -> None:
    """In another boot or PID namespace these numbers mean other processes; and a new agent may be at its start."""
    running(host.start(), task("sleep", "600"))
    about = agents(host)
    path = host.directory / "agent.json"
    if known == "guard alive":
        os.kill(about["pid"], signal.SIGSTOP)
    if known not in ("alive", "guard alive"):
        kill_both(host.directory)
        changed = {"machine": [about["machine"][0], "another boot"], "namespace": about["namespace"] + 1}
        path.write_text(json.dumps({**about, known: changed.get(known, 0)}))
    assert listed(host, tidy=True)[1] == []
    assert marked(host.run)
    if known == "guard alive":
        os.kill(about["pid"], signal.SIGCONT)
    else:
        path.write_text(json.dumps(about))


def test_an_agent_that_comes_back_to_its_directory_keeps_its_tasks(host: Host) -> None:
    """Its marks are those of the strays; but it has written another agent.json before its first task."""
    running(host.start(), task("sleep", "600"))
    kill_both(host.directory)
    running(host.start(), task("sleep", "600"))  # the run is planned again
    assert listed(host, tidy=True)[1] == []
    assert agents(host)["tasks"] == ["worker/0"]
    assert listed(host)[0]["state"] == "alive"


def test_a_visit_does_not_wait_where_too_many_wait_for_an_agent_that_hangs(host: Host) -> None:
    hung(host, 600.0)
    waiting = []
    directory = RunDirectory(str(host.parent), host.run, "h1")
    while (connection := directory.connect()) is not None:
        waiting.append(connection)
    visit = host.open("visit", run="", host="")
    visit.wait("hello")
    visit.send("attach", run=host.run, host="h1")
    said = visit.next()
    assert said is not None and "does not answer" in said["reason"]
    for each in waiting:
        each.close()


SWEEPS = """\
import os, sys, time
from tflaunch.agent.host import guard, processes
from tflaunch.agent.host.rundir import RunDirectory

class Impatient(processes.Purge):
    def __init__(self, victims, limit_s):
        super().__init__(victims, 0.3)

guard.processes.Purge = Impatient
directory = RunDirectory(*sys.argv[1:4])
directory.create()
heard, told = os.pipe()
waits = os.fork()
if waits == 0:
    os.execvp("cat", ["cat", sys.argv[4]])
while "wait_answer" not in open("/proc/%d/wchan" % waits).read():
    time.sleep(0.01)
agent = os.fork()
if agent == 0:
    time.sleep(600) if sys.argv[5] == "hangs" else os._exit(1)
os.close(told)
if sys.argv[5] == "hangs":
    guard._watch = lambda *_: (None, 9.0)
guard._purge_behind(agent, heard, directory)
print(guard.unswept(directory))
"""


@pytest.mark.parametrize("agent", ["killed", "hangs"])
def test_a_guard_that_cannot_end_a_process_names_it(dead: Path, tmp_path: Path, agent: str) -> None:
    """It waits for a file server, and no signal ends it: nobody has killed the guard."""
    directory = RunDirectory(str(tmp_path / "runs"), "run-abcdef", "h1")
    words = [
        sys.executable,
        "-c",
        SWEEPS,
        directory.parent,
        directory.run,
        directory.host,
        f"{dead}/x",
        agent,
    ]
    with (tmp_path / "agent.log").open("wb") as log:  # a pipe would stay open in what does not end
        subprocess.run(
            words, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log, check=True, timeout=60
        )
    why = directory.read("guard.json")["why"]
    assert re.fullmatch(
        "its agent gave no sign of life for 9 s: " * (agent == "hangs")
        + r"its guard could not end pid \d+ cat \(D: waits in the kernel, cannot be killed\)",
        why,
    )
    assert (tmp_path / "agent.log").read_text() == why.rpartition("9 s: ")[2] + "\n"
