"""What a Python writes of its threads, as the agent reads it; when a task is asked again; what prepares a Python."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.patience import until
from tflaunch.agent.host import processes, python_site
from tflaunch.agent.tasks import asked, inspection, threads
from tflaunch.agent.tasks.live_stacks import AGAIN_S, ON_DEMAND_S, Dumps
from tflaunch.agent.tasks.stack_text import one_stack, parsed
from tflaunch.in_task.stacks_site import SITE
from tflaunch.protocol.messages import FROM_AGENT, check
from tflaunch.protocol.wire import Message

DUMP = """\
Thread 0x00007f51 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 324 in wait
  File "/run/work/trainer.py", line 7 in pool

Thread 0x00007f52 [worker] (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 324 in wait
  File "/run/work/trainer.py", line 7 in pool

Thread 0x00007f53 (most recent call first):
  <no Python frame>

Thread 0x00007f50 (most recent call first):
  File "/run/work/a", line 3 in f", line 9 in g.py", line 26 in batches
  File "/run/work/trainer.py", line 40 in <module>
end 1
"""


def test_the_first_thread_comes_first_and_equal_ones_together() -> None:
    main, others = parsed(DUMP, 0x7F50, lambda path: path.removeprefix("/run/work/"))
    assert main == {
        "main": True,
        "frames": [['a", line 3 in f", line 9 in g.py', 26, "batches"], ["trainer.py", 40, "<module>"]],
        "count": 1,
    }
    assert others["count"] == 2
    assert others["frames"][1] == ["trainer.py", 7, "pool"]


def test_what_one_thread_writes_of_itself() -> None:
    text = 'Stack (most recent call first):\n  File "/run/a.py", line 7 in pool\n'
    assert one_stack(text, str) == [["/run/a.py", 7, "pool"]]


def test_a_dump_that_is_cut_before_the_first_thread_has_no_main() -> None:
    assert [each["main"] for each in parsed(DUMP + "...\n", 0x7F99, str)] == [False, False]


def test_a_task_that_writes_its_own_stacks_breaks_no_message() -> None:
    text = f"""\
Thread 0x1 (most recent call first):
  File "{"a" * 99999}", line 3 in {"f" * 99999}
  File "a.py", line {"9" * 40} in f
  File "a.py", line {"9" * 5000} in f
"""
    said = {
        "pid": 1,
        "name": "a",
        "threads": [],
        "stacks": parsed(text, 1, str),
        "why_none": "",
        "age_s": 0.0,
    }
    check(Message("inspected", {"tasks": {"worker/0": [said]}}, b""), FROM_AGENT)
    ((_, line, _),) = said["stacks"][0]["frames"]
    assert line == 3


@given(st.text(alphabet='Thread 0x1f(most)\n  File ", line 3 in', max_size=300), st.integers(0, 20))
def test_any_text_is_read(text: str, main: int) -> None:
    for stack in parsed(text, main, str):
        assert all(len(frame) == 3 for frame in stack["frames"])


def test_what_does_not_fit_is_cut_at_the_end_and_the_first_thread_keeps_its_place() -> None:
    stacks = [
        {"main": main, "frames": [["f" * 100, number, "g"] for number in range(50)], "count": 1}
        for main in (True, False, False)
    ]
    cut = inspection._fitting(stacks, 7000)
    assert [len(each["frames"]) for each in cut] == [50, 6]
    assert [len(each["frames"]) for each in inspection._fitting(stacks, 10)] == [3]


SLEEPS = "print('ready', flush=True); import time; time.sleep(600)"
# `ready` comes when it keeps the interpreter's lock already.
KEEPS_THE_LOCK = """
import ctypes
def sleeps():
    ctypes.PyDLL(None).system(b"echo ready; exec cat")
sleeps()
"""


keeps_the_lock = pytest.mark.parametrize("prepared", [KEEPS_THE_LOCK], indirect=True, ids=[""])


@pytest.fixture(params=[SLEEPS], ids=[""])
def prepared(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[processes.Process]:
    """A Python that is prepared; it sleeps, or runs another program."""
    tmp_path.chmod(0o700)
    words = [sys.executable, "-c", request.param]
    env = {**os.environ, "PYTHONPATH": python_site.put(str(tmp_path))}
    with subprocess.Popen(words, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        found = processes.read(child.pid)
        assert found is not None
        yield found
        child.kill()


def test_a_task_is_asked_again_after_a_while_only(prepared: processes.Process) -> None:
    dumps = Dumps()
    sent: list[float] = []
    key = ("worker/0", 0)

    def ask(now: float, on_demand: bool) -> float:
        done: list[bool] = []
        dumps.ask({key: [prepared]}, str, on_demand, now, lambda: done.append(True))
        step = iter(range(1, 10**6))
        until(lambda: done or dumps.tick(now + next(step) / 1000), "the answer")
        last, age_s = dumps.of(key, prepared, now + 1.0)
        assert last.found
        sent.append(dumps._latest[key].began)
        return age_s

    ask(0.0, False)
    assert ask(AGAIN_S - 5, False) > AGAIN_S - 10, "the answer says how old it is"
    ask(AGAIN_S, False)
    ask(AGAIN_S + ON_DEMAND_S - 1, True)
    ask(AGAIN_S + ON_DEMAND_S, True)
    assert [sent[0] == each for each in sent] == [True, True, False, False, False]
    assert (sent[2] == sent[3], sent[3] == sent[4]) == (True, False)


class Asking:
    """Asks one process, by a clock of its own."""

    def __init__(self, process: processes.Process) -> None:
        self.dumps, self.now = Dumps(), 0.0
        self._process = process
        self._key = ("worker/0", 0)

    def ask(self, signals: bool) -> list[asked.StacksAnswer]:
        """Begin; the answer is there once it has come."""
        answers: list[asked.StacksAnswer] = []

        def then() -> None:
            answers.append(self.dumps.of(self._key, self._process, self.now)[0])

        self.dumps.ask({self._key: [self._process]}, str, True, self.now, then, signals=signals)
        return answers

    def go_on(self, until_s: float, step_s: float = 0.05) -> None:
        """Until then, by that clock; with small steps, a thread that gets a signal has time to write."""
        while self.dumps.waits and self.now < until_s:
            self.now += step_s
            time.sleep(0.01)
            self.dumps.tick(self.now)
        self.now = until_s


def functions(answer: asked.StacksAnswer) -> list[str]:
    return [frame[2] for frame in (answer.found or [{"frames": []}])[0]["frames"]]


@keeps_the_lock
def test_a_slow_answer_comes_though_rules_ask_again_and_again(prepared: processes.Process) -> None:
    asking = Asking(prepared)
    answers = asking.ask(signals=True)
    asking.go_on(4.0)
    of_a_rule = asking.ask(signals=False)
    asking.go_on(5.0, step_s=0.002)
    asking.go_on(8.0)
    asking.ask(signals=False)
    assert list(map(functions, answers)) == [["sleeps", "<module>"]]
    assert list(map(functions, of_a_rule)) == [["sleeps", "<module>"]], "the answer that was on its way"


@keeps_the_lock
def test_a_rule_alone_has_no_signal_sent_and_is_answered_before_it_asks_again(
    prepared: processes.Process,
) -> None:
    asking = Asking(prepared)
    for at in (5.0, 10.0):
        answers = asking.ask(signals=False)
        asking.go_on(at)
        (answer,) = answers
        assert answer.found is None
        assert "it has not answered within 4 s" in answer.why_none
    asking.ask(signals=False)
    asking.go_on(12.0)
    answers = asking.ask(signals=True)
    asking.go_on(14.0)
    asking.go_on(15.0, step_s=0.002)
    assert list(map(functions, answers)) == [["sleeps", "<module>"]], "a user who asks meanwhile"


def test_a_process_that_has_another_start_time_is_not_asked(prepared: processes.Process) -> None:
    other = processes.Process(
        prepared.pid, prepared.parent, prepared.state, prepared.start + 1, prepared.name
    )
    dumps = Dumps()
    dumps.ask({("worker/0", 0): [other]}, str, True, 0.0, lambda: None)
    assert not dumps.waits
    assert dumps.of(("worker/0", 0), other, 0.0)[0].why_none == asked.UNPREPARED


# ---- the sitecustomize


def every_python() -> list[str]:
    """Every Python that can be had here, also those that tflaunch does not run on."""
    found = [Path("/usr/bin/python3"), *Path("~/.pyenv/versions").expanduser().glob("*/bin/python")]
    return [sys.executable, *(str(each) for each in found if each.exists())]


@pytest.mark.parametrize("python", every_python())
def test_it_runs_silently_in_any_python(python: str, tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    place = python_site.put(str(tmp_path))
    program = (
        f"import sys; found = getattr(sys.modules.get('sitecustomize'), '__file__', '')\n"
        f"print([{place!r} in sys.path, {place!r} in found])"
    )
    env = {**os.environ, "PYTHONPATH": place}
    for options in ([], ["-v"]) if python == sys.executable else ([],):
        done = subprocess.run(
            [python, *options, "-c", program], env=env, capture_output=True, text=True, check=True
        )
        assert done.stdout == "[False, False]\n"
        if not options:
            assert done.stderr == ""
    modules = "import sys; print(sorted(sys.modules))"
    with_it, without = (
        subprocess.run([python, "-c", modules], env=each, capture_output=True, text=True, check=True).stdout
        for each in (env, {**os.environ, "PYTHONPATH": ""})
    )
    more = set(with_it.split("'")) - set(without.split("'"))
    assert more <= {"faulthandler", "_signal", "_thread", "atexit", "gc"}, (
        "it imports nothing that a program might miss"
    )


def test_it_is_written_once_and_for_this_user_alone(tmp_path: Path) -> None:
    place = Path(python_site.put(str(tmp_path)))
    assert (place / "sitecustomize.py").read_text() == SITE
    assert place.stat().st_mode & 0o777 == 0o700
    assert (place / "sitecustomize.py").stat().st_mode & 0o777 == 0o600
    assert python_site.put(str(tmp_path)) == str(place)
    assert python_site.prefix("/a:b") == "", "PYTHONPATH cannot hold it"


@pytest.mark.parametrize("python", [each for each in every_python() if "/2." not in each])
def test_what_a_python_has_compiled_of_it_serves_the_next_run(
    python: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tmp_path / "code"
    store.mkdir()

    def compiled(run: str, **more: str) -> dict[str, int]:
        """The files that are in the store once a task of that run has started, and which ones they are."""
        directory = tmp_path / run / "host1"
        directory.mkdir(parents=True)
        env = {"PATH": os.environ["PATH"], "PYTHONPATH": python_site.put(str(directory)), **more}
        program = "import faulthandler, sys, time; print(len(sys._current_frames()))"
        done = subprocess.run([python, "-c", program], env=env, capture_output=True, text=True, check=True)
        assert (done.stdout, done.stderr) == ("2\n", ""), "the thread that answers"
        return {file.name: file.stat().st_ino for file in store.iterdir()}

    first = compiled("one")
    assert [name.startswith("sitecustomize.") for name in first] == [True]
    assert compiled("two") == first, "it would be a new file"
    monkeypatch.setattr("tflaunch.in_task.stacks_site.SITE", SITE.replace("-stacks-", "-stacks+"))
    other = compiled("three")
    assert other.keys() == first.keys()
    assert other != first, "another text, of the same size, is compiled"
    store.rename(tmp_path / "gone")
    store.mkdir()
    assert compiled("four", PYTHONDONTWRITEBYTECODE="1") == {}


def test_where_it_cannot_be_written_the_tasks_start_without(tmp_path: Path) -> None:
    assert python_site.prefix(str(tmp_path / "none")) == ""


# ---- the signal


def test_a_thread_that_has_run_since_gets_no_signal(prepared: processes.Process) -> None:
    one = asked.Asked(prepared, 0.0, str)
    until(lambda: one.tick(0.0), "the answer: its thread sleeps again")
    looks: list[threads.Seen] = []

    def sleeps() -> bool:
        """Its main thread has answered, and may still be on its way back to sleep."""
        seen = threads.look_at(prepared.pid, prepared.pid)
        assert seen is not None
        looks.append(seen)
        return one._still(prepared.pid, seen)

    until(sleeps, "its thread to sleep")
    seen = looks[-1]
    assert not one._still(prepared.pid, (*seen[:2], seen[2] - 1e-6, *seen[3:]))
    assert not one._still(prepared.pid, (seen[0] - 1, *seen[1:])), "another thread with the same number"
    one.close()


def test_who_sleeps_and_who_computes() -> None:
    def seen(state: str = "S", ran_s: float = 1.0, waited_s: float = 1.0, switches: int = 5) -> threads.Seen:
        return (7, state, ran_s, waited_s, (switches, 2), 0)

    before = {1: seen(), 2: seen(), 3: seen(), 4: seen("R"), 5: seen("R"), 6: seen("D")}
    now = {
        1: seen(),
        2: seen(switches=6),
        3: seen("S", 1.002, 1.9, 400),  # it waits for Python's lock, on a busy host
        4: seen("R", 3.0),
        5: seen("R", 1.3, 2.6),  # it has waited for a processor most of the time
        6: seen("D"),
        9: seen(),
    }
    assert threads.asleep(before, now) == [1]
    assert [tid for tid, _ in threads.computing(before, now, 2.0)] == [4, 5]


@pytest.mark.parametrize("descriptor", [True, False])
def test_a_signal_to_one_thread(monkeypatch: pytest.MonkeyPatch, descriptor: bool) -> None:
    """With and without the kernel's descriptors of threads (Linux 6.9)."""
    if not descriptor:
        monkeypatch.setattr(threads, "PIDFD_OPEN", 10**6)
    program = (
        "import signal, threading, time\nhandler = lambda *_: print('got', flush=True)\n"
        "signal.signal(signal.SIGUSR1, handler)\nprint('ready', flush=True)\nwhile True: time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert not threads.send(child.pid, child.pid, signal.SIGUSR1, lambda: False)
        assert threads.send(child.pid, child.pid, signal.SIGUSR1, lambda: True)
        assert child.stdout.readline() == "got\n"
        child.kill()
        child.wait()
        assert not threads.send(child.pid, child.pid, signal.SIGUSR1, lambda: True), "it has ended"
