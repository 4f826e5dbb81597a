"""The thread by which a task tells its stacks: no program notices it, and no look harms one, with every Python."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.agent_over_pipes import interpreters
from tests.support.looked_at import PROGRAMS, LookedAt, has_headers, look_at, play
from tests.support.other_users import BECOME
from tests.support.patience import until
from tflaunch.agent.host import processes

Begin = Callable[..., LookedAt]
every_python = pytest.mark.parametrize("python", interpreters())


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Begin]:
    """Starts a program that is prepared as a task is."""
    begun: list[LookedAt] = []

    def begin(python: str, program: str, *options: str) -> LookedAt:
        begun.append(LookedAt(python, program, tmp_path, *options))
        return begun[-1]

    yield begin
    for each in begun:
        each.kill()


def asks_of(program: LookedAt) -> str:
    """The path by which the thread of that program is asked."""
    descriptors = Path(f"/proc/{program.child.pid}/fd")
    links = {each: str(each.readlink()) for each in descriptors.iterdir()}
    (name,) = [link for link in links.values() if "tflaunch-stacks-" in link]
    inode = name.split(" ")[0].rpartition("-")[2]
    return next(str(each) for each, link in links.items() if link == f"pipe:[{inode}]")


# ---- looks


@every_python
@pytest.mark.parametrize("name", ["training", "pools", "threads"])
def test_500_looks_at_threads_that_come_and_go(python: str, name: str, tmp_path: Path) -> None:
    """Each of these died of the looks that read the frames of threads that run."""
    if name == "training" and not has_headers(python):
        pytest.skip("no Python.h")
    assert play(python, name, 500, tmp_path) == ""


OTHERS = [name for name in PROGRAMS if name not in ("training", "pools", "threads")]


@pytest.mark.parametrize(
    ("name", "python"), list(zip(OTHERS, interpreters() * len(OTHERS), strict=False)), ids=OTHERS
)
def test_500_looks_change_no_result(python: str, name: str, tmp_path: Path) -> None:
    assert play(python, name, 500, tmp_path) == ""


# ---- a program does not notice it


@every_python
def test_threading_does_not_count_it(begin: Begin, python: str) -> None:
    program = begin(
        python,
        "import threading\n"
        "print(threading.active_count(), threading.enumerate() == [threading.main_thread()], flush=True)\ninput()",
    )
    assert program.first_line == "1 True\n"
    assert program.look().found
    threads = {each.read_text() for each in Path(f"/proc/{program.child.pid}/task").glob("*/comm")}
    assert "tflaunch-stacks\n" in threads, "but ps shows whose it is"


@every_python
def test_a_signal_that_the_program_waits_for_is_not_delivered_to_it(begin: Begin, python: str) -> None:
    program = begin(
        python,
        "import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])\nprint('ready', flush=True)\n"
        "input()\nprint(signal.sigwait([signal.SIGTERM]) == signal.SIGTERM)",
    )
    program.child.send_signal(signal.SIGTERM)
    assert program.child.stdin is not None
    program.child.stdin.write("\n")
    assert program.end() == (0, "True\n", "")


WARNED = """
import os, sys, threading, warnings
seen = []
warnings.simplefilter("always")
warnings.showwarning = lambda message, *_, **__: seen.append(str(message))
def forks(how):
    pid = getattr(os, how)()
    pid = pid if how == "fork" else pid[0]
    if not pid:
        os._exit(threading.active_count())
    assert os.waitpid(pid, 0)[1] >> 8 == threading.active_count() == 1
forks("fork")
with warnings.catch_warnings():
    forks("fork")
forks("forkpty")
alone = list(seen)
filters = len(warnings.filters)
end = threading.Event()
thread = threading.Thread(target=end.wait)
thread.start()
if not os.fork():
    os._exit(0)
os.wait()
with_a_thread = len(seen)
end.set()
thread.join()
print(alone, with_a_thread == (sys.version_info >= (3, 12)), len(warnings.filters) - filters <= 0, flush=True)
"""


@every_python
def test_a_fork_is_warned_of_as_ever_and_not_because_of_it(begin: Begin, python: str) -> None:
    assert begin(python, WARNED).first_line == "[] True True\n"


REPLACES = """
import _thread, os

for name in ("allocate_lock", "get_ident", "stack_size", "start_new_thread"):
    setattr(_thread, name, lambda *words: print("called", flush=True))
for name in ("read", "write", "close", "readlink", "listdir", "pipe"):
    setattr(os, name, lambda *words: print("called", flush=True))
child = os.fork()
if not child:
    print("the child", flush=True)
    os._exit(0)
os.waitpid(child, 0)
"""


@every_python
def test_a_program_may_put_functions_of_its_own_in_the_place_of_all_that_it_uses(
    begin: Begin, python: str
) -> None:
    """As gevent does, whose threads take turns in the program's own: one that waits in read() would hold them all."""
    program = begin(python, REPLACES)
    assert program.first_line == "the child\n"
    assert program.end()[:2] == (0, "")


SANDBOXED = """
import ctypes, os, struct
forbidden = [2, 257, 89, 267]  # open, openat, readlink, readlinkat
last = len(forbidden)
rules = [(0x20, 0, 0, 0), *((0x15, last - each, 0, number) for each, number in enumerate(forbidden))]
rules += [(0x06, 0, 0, 0x7FFF0000), (0x06, 0, 0, 0x80000000)]  # go on; end the process
text = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *rule) for rule in rules))
program = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(rules), ctypes.addressof(text)))
libc = ctypes.CDLL(None)
libc.prctl(38, 1, 0, 0, 0)  # PR_SET_NO_NEW_PRIVS
print(libc.syscall(317, 1, 1, program), flush=True)  # seccomp, for all threads
os.read(0, 1)
print("done", flush=True)
"""


@every_python
@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the numbers of its system calls")
def test_a_program_in_a_sandbox_that_opens_nothing_is_not_ended_by_a_look(begin: Begin, python: str) -> None:
    program = begin(python, SANDBOXED)
    assert program.first_line == "0\n"
    for _ in range(3):
        assert program.look().found
    # Python 3.8 itself opens a library as a thread ends.
    assert program.end()[1] == "done\n"


@every_python
def test_a_child_of_subprocess_with_a_preexec_fn_has_one_thread(begin: Begin, python: str) -> None:
    """It may do what only a process with one thread may, such as entering a user namespace."""
    program = begin(
        python,
        "import os, subprocess\n"
        "def shows():\n    os.write(1, b'%d\\n' % len(os.listdir('/proc/self/task')))\n"
        "subprocess.run(['true'], preexec_fn=shows)",
    )
    assert program.first_line == "1\n"


CLOSES = """
import os
os.closerange(3, 100)
kept = [os.open("kept", os.O_RDWR | os.O_CREAT) for _ in range(8)]
pipe, _ = os.pipe()
print("ready", flush=True)
input()
pid = os.fork()
if not pid:
    print("child", os.getpid(), [os.fstat(each).st_size for each in kept], flush=True)
    input()
    os._exit(0)
os.wait()
"""


@every_python
def test_a_program_that_has_closed_all_descriptors_keeps_its_own(
    begin: Begin, python: str, tmp_path: Path
) -> None:
    program = begin(python, CLOSES)
    with pytest.raises(OSError, match="no Python that tflaunch has prepared"):
        program.look()
    assert program.child.stdin is not None
    assert program.child.stdout is not None
    program.child.stdin.write("\n")
    program.child.stdin.flush()
    _, pid, kept = program.child.stdout.readline().split(maxsplit=2)
    assert kept == f"{[0] * 8}\n"
    child = processes.read(int(pid))
    assert child is not None
    assert look_at(child).found, "and its child is prepared again"
    assert (tmp_path / "kept").read_text() == ""


@every_python
def test_the_file_of_a_program_that_got_its_descriptor_stays_as_it_is(
    begin: Begin, python: str, tmp_path: Path
) -> None:
    program = begin(
        python,
        "import os\n"
        "places = {each: f'/proc/self/fd/{each}' for each in range(3, 20)}\n"
        "links = {each: os.readlink(place) for each, place in places.items() if os.path.exists(place)}\n"
        "file, = [each for each, link in links.items() if 'tflaunch-stacks' in link]\n"
        "pipe, = [each for each, link in links.items() if link.startswith('pipe:')]\n"
        "os.close(file)\nkept = os.open('kept', os.O_RDWR | os.O_CREAT)\nos.dup2(kept, file)\n"
        "print(pipe, flush=True)\ninput()",
    )
    assert program.first_line, program.end()
    task = Path(f"/proc/{program.child.pid}/task")
    until(lambda: len(list(task.iterdir())) == 2, "the thread")
    asks = os.open(f"/proc/{program.child.pid}/fd/{program.first_line.strip()}", os.O_WRONLY)
    os.write(asks, b"%015d\n" % 1)
    os.close(asks)
    until(lambda: len(list(task.iterdir())) == 1, "the end of the thread, which has nothing to write to")
    assert (tmp_path / "kept").read_text() == ""


@every_python
def test_another_interpreter_of_the_process_has_no_thread_of_its_own(begin: Begin, python: str) -> None:
    """Python dies where an interpreter ends before its threads."""
    program = begin(
        python,
        "import os\n"
        "try:\n    import _interpreters as them\nexcept ImportError:\n    import _xxsubinterpreters as them\n"
        "run = getattr(them, 'run_string', None) or them.exec\n"
        # Not isolated, for then it may have threads.
        "def create(*words, **options):\n    try:\n        return them.create(*words, **options)\n"
        "    except TypeError:\n        return None\n"
        "for _ in range(3):\n    each = create(isolated=False) or create('legacy') or create()\n"
        "    run(each, 'import sys')\n    them.destroy(each)\n"
        "print(len(os.listdir('/proc/self/task')), flush=True)\ninput()",
    )
    assert program.first_line == "2\n", program.end()
    assert program.look().found


# ---- its end


@every_python
def test_programs_that_end_while_they_are_asked_end_as_ever(begin: Begin, python: str) -> None:
    for _ in range(5):
        program = begin(
            python,
            "import sys, threading\nthreads = [threading.Thread(target=sum, args=[range(100000)]) for _ in range(3)]\n"
            "for each in threads: each.start()\nprint('ready', flush=True)\ninput()\nsum(range(500000))\nsys.exit(5)",
        )
        assert program.child.stdin is not None
        program.child.stdin.write("\n")
        program.child.stdin.flush()
        try:
            asks = os.open(asks_of(program), os.O_WRONLY | os.O_NONBLOCK)
            while program.child.poll() is None:
                if select.select([], [asks], [], 0.01)[1]:
                    os.write(asks, b"%015d\n" % 1)
        except OSError:
            pass  # it has ended
        assert program.end() == (5, "", "")


def test_a_program_ends_though_nobody_has_answered_thousands_of_asks(begin: Begin) -> None:
    program = begin(
        sys.executable,
        "import ctypes, os\nprint('ready', flush=True)\nctypes.PyDLL(None).read(0, ctypes.create_string_buffer(1), 1)",
    )
    asks = os.open(asks_of(program), os.O_WRONLY | os.O_NONBLOCK)
    with pytest.raises(BlockingIOError):
        while True:
            os.write(asks, b"%015d\n" % 1)
    os.close(asks)
    assert program.end() == (0, "", "")


# ---- who may ask


@pytest.mark.skipif(os.getuid() != 0, reason="needs a second user")
def test_another_user_can_neither_ask_nor_read(begin: Begin) -> None:
    """Of a task that runs as one of them: root could do all of it anyway."""
    program = begin(sys.executable, "print('ready', flush=True)\ninput()")
    asks = asks_of(program)
    tries = (
        "for path in sys.argv[1:]:\n"
        "    try:\n        os.open(path, os.O_WRONLY)\n"
        "    except PermissionError:\n        continue\n"
        "    sys.exit('opened ' + path)\n"
    )
    paths = [str(each) for each in Path(asks).parent.iterdir()]
    assert asks in paths
    subprocess.run([sys.executable, "-c", BECOME + tries, *paths], check=True)
    assert program.look().found
