"""The stacks of tasks that go on, asked of the agent as it is shipped, for every Python."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.agent_over_pipes import Channel, Host, interpreters, task
from tests.support.patience import until

PROGRAM = """
import sys, threading, time

def deeper(seconds):
    time.sleep(seconds)

def batches():
    deeper(600)

def pool():
    threading.Event().wait()

for _ in range(3):
    threading.Thread(target=pool, daemon=True).start()
print("ready", flush=True)
batches()
"""


def start(channel: Channel, *tasks: dict[str, Any]) -> None:
    channel.send("stage", tasks=list(tasks), code=None, ports=[], gpus=[], door=False, attempt=0)
    channel.wait("staged")
    channel.send("release")
    channel.gather("started", len(tasks))


def follow(channel: Channel) -> None:
    channel.send("watch", after=0, logs={}, window=1 << 20, client="test")


def inspect(channel: Channel, name: str = "worker/0", **more: Any) -> list[dict[str, Any]]:
    answer = channel.ask("inspect", tasks=[name], stacks=True, answer="inspected", **more)
    processes: list[dict[str, Any]] = answer["tasks"][name]
    return processes


def python(program: str, *options: str, executable: str = sys.executable) -> list[str]:
    return [executable, *options, "-c", program]


def functions(frames: list[list[Any]]) -> list[str]:
    return [frame[2] for frame in frames]


def test_where_each_thread_is_and_the_program_goes_on(every_host: Host) -> None:
    channel = every_host.start()
    follow(channel)
    start(channel, task(*python(PROGRAM)))
    channel.read_log("worker/0", lambda log: b"ready\n" in log)
    (program,) = inspect(channel)
    main, *others = program["stacks"]
    assert main["main"]
    assert functions(main["frames"]) == ["deeper", "batches", "<module>"]
    assert main["frames"][1][:2] == ["<string>", 8]
    assert [each["count"] for each in others] == [3]
    assert "pool" in functions(others[0]["frames"])
    assert program["why_none"] == ""
    again = inspect(channel)[0]
    assert again["stacks"] == program["stacks"], "asked again soon, it is the same answer"
    assert again["pid"] == program["pid"], "and the program lives"
    assert channel.log["worker/0"] == b"ready\n", "nothing of it is in the log"
    channel.ask("end", grace_s=0.0, answer="swept")


@pytest.fixture
def begun(host: Host) -> Callable[..., Channel]:
    """Starts `worker/0` with these words, and waits until it has printed `ready`."""

    def begin(*words: str, **fields: Any) -> Channel:
        channel = host.start()
        follow(channel)
        start(channel, task(*words, **fields))
        channel.read_log("worker/0", lambda log: b"ready\n" in log)
        return channel

    return begin


def alive(process: dict[str, Any]) -> bool:
    return Path(f"/proc/{process['pid']}").exists()


@pytest.mark.parametrize(
    "python", [each for each in interpreters() if each != sys.executable] or [sys.executable]
)
def test_with_the_pythons_of_the_tasks(begun: Callable[..., Channel], python: str) -> None:
    (program,) = inspect(begun(python, "-c", PROGRAM))
    assert functions(program["stacks"][0]["frames"]) == ["deeper", "batches", "<module>"], program


def test_a_program_whose_name_linux_cuts_within_a_letter(
    begun: Callable[..., Channel], tmp_path: Path
) -> None:
    path = tmp_path / "обучение_модели.py"
    path.write_text(f"#!{sys.executable}\n{PROGRAM}")
    path.chmod(0o700)
    (program,) = inspect(begun(str(path)))
    assert functions(program["stacks"][0]["frames"]) == ["deeper", "batches", "<module>"], program


@pytest.mark.parametrize(
    "words",
    [
        (sys.executable, "-I", "-c", PROGRAM),
        (sys.executable, "-E", "-c", PROGRAM),
        (sys.executable, "-S", "-c", PROGRAM),
        ("/bin/sh", "-c", "echo ready; exec sleep 600"),
        (sys.executable, "-c", "import os; print('ready', flush=True); os.execvp('sleep', ['sleep', '600'])"),
    ],
    ids=["-I", "-E", "-S", "sleep", "a Python that has become sleep"],
)
def test_what_is_not_prepared_gets_no_signal(begun: Callable[..., Channel], words: tuple[str, ...]) -> None:
    channel = begun(*words)
    if words[-1].endswith("])"):
        until(lambda: inspect(channel)[0]["name"] == "sleep", "the other program")
    (program,) = inspect(channel, on_demand=True)
    assert program["stacks"] is None
    assert "no Python that tflaunch has prepared" in program["why_none"]
    assert alive(program), "the signal would have ended it"
    assert program["threads"], "and /proc tells of it still"


PRETENDER = """
import ctypes, os, signal, sys
stat = open("/proc/self/stat").read()
start = stat[stat.rindex(")"):].split()[20]
asks, _ = os.pipe()
name = "tflaunch-stacks-%d-%s-1-%d" % (os.getpid(), start, os.fstat(asks).st_ino)
HOW
print("ready", flush=True)
while True:
    asked = os.read(asks, 64)
    answer(asked)
"""


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("os.memfd_create(name); answer = id", "it has not answered within 4 s"),
        (
            "os.memfd_create(name.rpartition('-')[0] + '-%d' % os.fstat(0).st_ino)",
            "it has not answered within 4 s",
        ),
        (
            "signal.signal(signal.SIGRTMAX - 3, print); os.mkfifo(name); os.open(name, os.O_RDWR); os.unlink(name)",
            "is another file",
        ),
        (
            "signal.signal(signal.SIGRTMAX - 3, print); os.open(name, os.O_CREAT | os.O_RDWR)",
            "no Python that",
        ),
        (
            "signal.signal(signal.SIGRTMAX - 3, print); f = os.open(name, os.O_CREAT | os.O_RDWR); "
            "os.link(name, 'kept'); os.unlink(name)",
            "is another file",
        ),
    ],
    ids=["no handler", "another pipe", "a pipe", "a file that is there", "a file that has another name"],
)
def test_a_pretender_is_not_signalled(begun: Callable[..., Channel], how: str, why: str) -> None:
    (program,) = inspect(begun(sys.executable, "-I", "-c", PRETENDER.replace("HOW", how)))
    assert program["stacks"] is None
    assert why in program["why_none"]
    assert alive(program)


def test_a_pretender_that_answers_says_only_what_is_its_own(begun: Callable[..., Channel]) -> None:
    """Its file may hold anything: it is read as stacks, in bounds."""
    how = (
        "f = os.memfd_create(name); lie = b'Thread 0x1 (most recent):\\n' + 60000 * b'  File \"x\", line 9 in y\\n'; "
        "answer = lambda asked: os.write(f, lie + b'end ' + asked)"
    )
    (program,) = inspect(begun(sys.executable, "-I", "-c", PRETENDER.replace("HOW", how)))
    (stack,) = program["stacks"]
    assert 1000 < len(stack["frames"]) < 60000
    assert stack["frames"][0] == ["x", 9, "y"]


def test_the_users_own_sitecustomize_runs_and_is_what_the_program_sees(
    begun: Callable[..., Channel], tmp_path: Path
) -> None:
    package = tmp_path / "mine" / "sitecustomize"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("print('mine runs', flush=True)\nVALUE = 7\n")
    program = (
        "import sys, sitecustomize\n"
        "print(sitecustomize.VALUE, [each for each in sys.path if each.endswith('/python')])\n" + PROGRAM
    )
    channel = begun(sys.executable, "-c", program, env={"PYTHONPATH": str(package.parent)})
    assert channel.log["worker/0"] == b"mine runs\n7 []\nready\n"
    assert functions(inspect(channel)[0]["stacks"][0]["frames"]) == ["deeper", "batches", "<module>"]


def test_one_that_fails_fails_as_ever(begun: Callable[..., Channel], tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("1 / 0\n")
    channel = begun(sys.executable, "-c", PROGRAM, env={"PYTHONPATH": str(tmp_path)})
    assert (
        b"Error in sitecustomize; set PYTHONVERBOSE for traceback:\nZeroDivisionError"
        in channel.log["worker/0"]
    )
    assert inspect(channel)[0]["stacks"]


FAMILY = """
import multiprocessing, os, time

def in_the_child():
    time.sleep(600)

if __name__ == "__main__":
    children = [multiprocessing.get_context(how).Process(target=in_the_child) for how in ("fork", "spawn")]
    for child in children:
        child.start()
    if not os.fork():
        os.execvp("sleep", ["sleep", "600"])
    print("ready", flush=True)
    children[0].join()
"""


def test_children_answer_for_themselves(begun: Callable[..., Channel], tmp_path: Path) -> None:
    (tmp_path / "family.py").write_text(FAMILY)
    channel = begun(sys.executable, "family.py", cwd=str(tmp_path))

    def all_there() -> bool:
        found = inspect(channel, on_demand=True)
        children = [each for each in found if "in_the_child" in str(each["stacks"])]
        return len(children) == 2 and "sleep" in [each["name"] for each in found]

    until(all_there, "the stacks of both children", 60)
    found = inspect(channel)
    assert found[0]["stacks"][0]["frames"][-1][0] == "family.py"
    assert found[0]["stacks"][0]["frames"][-1][2] == "<module>"
    (sleeper,) = [each for each in found if each["name"] == "sleep"]
    assert sleeper["stacks"] is None
    assert all(map(alive, found))


def test_without_stacks_nothing_is_prepared(begun: Callable[..., Channel]) -> None:
    channel = begun(
        sys.executable, "-c", "import os; print(os.environ.get('PYTHONPATH'))\n" + PROGRAM, stacks=False
    )
    assert channel.log["worker/0"] == b"None\nready\n"
    (program,) = inspect(channel)
    assert program["stacks"] is None
    assert program["why_none"] == "the run was started with --no-stacks"


def test_the_setup_and_the_users_path_stay(begun: Callable[..., Channel], host: Host) -> None:
    setup = ["export PYTHONPATH=/from/setup"]
    channel = begun(
        sys.executable, "-c", "import os; print(os.environ['PYTHONPATH'])\n" + PROGRAM, setup=setup
    )
    first = channel.log["worker/0"].split(b"\n")[0].decode()
    assert first == f"{host.directory}/python:/from/setup"
    assert inspect(channel)[0]["stacks"]


def test_one_that_blocks_all_signals_answers_and_one_that_is_stopped_delays_no_other(host: Host) -> None:
    channel = host.start()
    follow(channel)
    blocks = "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())\n" + PROGRAM
    stops = "import os; print('ready', flush=True); os.kill(os.getpid(), 19)"
    names = {
        "worker/0": PROGRAM,
        "worker/1": blocks,
        "worker/2": stops,
    }
    start(channel, *(task(*python(program), id=name) for name, program in names.items()))
    for name in names:
        channel.read_log(name, lambda log: b"ready\n" in log)
    until(lambda: inspect(channel, "worker/2")[0]["threads"][0][2] == "T", "it to stop")
    answer = channel.ask("inspect", tasks=list(names), stacks=True, on_demand=True, answer="inspected")[
        "tasks"
    ]
    assert answer["worker/0"][0]["stacks"]
    assert answer["worker/1"][0]["stacks"]
    assert "stopped" in answer["worker/2"][0]["why_none"]


def test_a_task_that_is_started_again_is_asked_again(begun: Callable[..., Channel]) -> None:
    channel = begun(sys.executable, "-c", PROGRAM)
    (first,) = inspect(channel)
    os.kill(first["pid"], signal.SIGKILL)
    channel.wait("exit")
    channel.send("restart", tasks={"worker/0": 1})
    channel.wait("started")
    channel.read_log("worker/0.1", lambda log: b"ready\n" in log)
    (second,) = inspect(channel)
    assert second["pid"] != first["pid"]
    assert functions(second["stacks"][0]["frames"]) == ["deeper", "batches", "<module>"]


@pytest.mark.parametrize("python", interpreters())
def test_a_loop_in_python_always_tells_its_line(begun: Callable[..., Channel], python: str) -> None:
    program = "def spins():\n    while True: pass\nprint('ready', flush=True)\nspins()"
    (found,) = inspect(begun(python, "-c", program))
    assert functions(found["stacks"][0]["frames"]) == ["spins", "<module>"]


def test_native_code_that_keeps_the_lock_gets_no_signal_and_is_told_as_that(
    begun: Callable[..., Channel],
) -> None:
    program = (
        "import threading, time\ndef spins():\n    sum(iter(int, 1))\n"
        "threading.Thread(target=time.sleep, args=[600]).start()\nprint('ready', flush=True)\nspins()"
    )
    (found,) = inspect(begun(sys.executable, "-c", program))
    assert not [stack for stack in found["stacks"] or () if stack["main"]]
    assert f"its thread {found['pid']} (python" in found["why_none"]
    assert "% of a core, and keeps Python's lock (the GIL)" in found["why_none"]
    assert [tid for tid, _ in found["native"]] == [found["pid"]]
    assert alive(found)
    assert signals_of(found["pid"]) == signals_of(found["pid"], "SigPnd") == 0


def signals_of(pid: int, which: str = "ShdPnd") -> int:
    """The signals that wait for a process, or its first thread."""
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1], 16) for line in status.splitlines() if line.startswith(which))


def test_a_question_that_forbids_signals_sends_none(begun: Callable[..., Channel]) -> None:
    program = "import ctypes\nctypes.PyDLL(None).system(b'echo ready; exec sleep 600')"
    (found, *_) = inspect(begun(sys.executable, "-c", program), on_demand=True, signals=False)
    assert found["stacks"] is None
    assert "it has not answered within 4 s" in found["why_none"]


@pytest.mark.parametrize("python", interpreters())
def test_one_that_sleeps_in_c_with_the_lock_tells_its_line(
    begun: Callable[..., Channel], python: str
) -> None:
    """By the signal; the threads that wait for the lock run again and again, and get none.

    They leave it to the first thread until that keeps it: else it would still wait for it when it is looked at.
    """
    program = (
        "import ctypes, os, threading, time\nnothing, _ = os.pipe()\ndef pool():\n    while True: time.sleep(0.001)\n"
        "def sleeps():\n    ctypes.PyDLL(None).read(nothing, ctypes.create_string_buffer(1), 1)\n"
        "for _ in range(3): threading.Thread(target=pool, daemon=True).start()\n"
        "print('ready', flush=True)\nsleeps()"
    )
    channel = begun(python, "-c", program)
    (found,) = inspect(channel)
    assert [functions(stack["frames"]) for stack in found["stacks"]] == [["sleeps", "<module>"]], found
    assert found["stacks"][0]["main"]
    assert found["why_none"] == ""
    assert alive(found)


def test_the_program_of_a_script_below_a_shell(begun: Callable[..., Channel], tmp_path: Path) -> None:
    script = tmp_path / "run"
    script.write_text(f"#!{sys.executable}\n{PROGRAM}")
    script.chmod(0o755)
    wrapper, program = inspect(begun("/bin/sh", "-c", f"{script}; true"))
    assert wrapper["stacks"] is None
    assert functions(program["stacks"][0]["frames"]) == ["deeper", "batches", "<module>"]
