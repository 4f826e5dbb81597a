"""The program that `tflaunch sweep --preload` runs on a host: it imports modules, then forks a process for each trial.

Its words are the modules, and one that only makes room.  Its input is a socket to the agent
(tflaunch.agent.tasks.preloading), on which it says lines of JSON: first {why}, "" once it is ready.  Then it gets
requests: the size of a JSON text, in 8 bytes that bring three descriptors along; the text, {argv, cwd, cpus, site,
own}.  It answers {why}, where it cannot stand in for a new Python, or {pid}.

That process is a child of the agent, which adopts orphans.  It has a session, streams, CPUs, directory and variables of
its own, also in /proc, waits as the shell of any other task does (tflaunch.agent.tasks.gate), and runs the program.

A fork copies the thread that forks alone: locks that others hold stay locked.  So there is no ready preloader where
modules leave threads behind, or open a GPU, whose driver does not survive a fork.  Two kinds of thread do no harm:
their libraries make themselves ready for each fork by pthread_atfork.  Those of OpenBLAS end before it, and that of
jemalloc (pyarrow) is begun anew.
"""

import array
import builtins
import ctypes
import gc
import importlib
import json
import os
import socket
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType
    from typing import Any, Dict, Iterable, Iterator, List, Optional, Tuple, Type

READY_FOR_FORKS = ("jemalloc_bg_thd",)  # names of threads
ROOM = "TFLAUNCH_ROOM"  # a variable without a meaning: its place in memory shows those of the trial in /proc
GPUS = ("/dev/nvidia", "/dev/kfd", "/dev/dri", "/dev/dxg")
LOOKS = 100  # 10 ms apart, until the threads that end before a fork have left /proc


def imported(names: "Iterable[str]") -> str:
    """Why these modules cannot be imported for all trials; "": they are."""
    if any(place and not os.path.isabs(place) for place in os.environ.get("PYTHONPATH", "").split(":")):
        return "PYTHONPATH has a relative directory"
    for name in names:
        try:
            importlib.import_module(name)
        except BaseException as error:  # an import may also end the program
            return "import %s: %s: %s" % (name, type(error).__name__, error)
    return ""


def harmed_by_forks() -> str:
    """Why what is imported does not survive a fork; "": it does."""
    pid = os.fork()
    if not pid:
        os._exit(0)
    os.waitpid(pid, 0)
    names = threads()
    for _ in range(LOOKS):
        if not names:
            break
        time.sleep(0.01)
        names = threads()
    if names:
        return "they leave threads behind: " + ", ".join(names)
    opened = sorted(each for each in files() if each.startswith(GPUS))
    return "they open " + ", ".join(opened) if opened else ""


def threads() -> "List[str]":
    """The names of all threads but this one that a fork may harm."""
    found = []
    for thread in os.listdir("/proc/self/task"):
        try:
            with open("/proc/self/task/%s/comm" % thread, "rb") as file:
                name = file.read().decode("utf-8", "replace").strip()
        except OSError:  # it has ended
            continue
        if int(thread) != os.getpid() and name not in READY_FOR_FORKS:
            found.append(name)
    return found


def files() -> "Iterator[str]":
    """What this process has open."""
    for number in os.listdir("/proc/self/fd"):
        try:
            yield os.readlink("/proc/self/fd/" + number)
        except OSError:  # that of the list
            pass


class Shown:
    """What others see of this process in /proc: its words, and its variables."""

    def __init__(self) -> None:
        with open("/proc/self/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        begin, end, variables, variables_end = map(int, fields[45:49])
        text = ctypes.string_at(variables, variables_end - variables)
        room = (ROOM + "=").encode()
        at = text.index(room)
        self._words = begin, end - begin
        self._variables = variables + at, text.index(b"\0", at) - at

    def change(self, words: "List[bytes]", variables: "List[bytes]") -> None:
        """Show these words, as far as there is room, and these variables beside those of its start."""
        self._write(self._words, words)
        size = self._variables[1]
        fit = []
        for each in sorted(variables, key=len):  # the marks by which it is found are short
            if len(each) < size:
                fit.append(each)
                size -= len(each) + 1
        self._write(self._variables, fit)

    def _write(self, where: "Tuple[int, int]", texts: "List[bytes]") -> None:
        place, size = where
        text = b"".join(each + b"\0" for each in texts)[: size - 1]
        ctypes.memmove(place, text.ljust(size, b"\0"), size)


def directory_of(argv: "List[str]", cwd: str) -> str:
    """What a new Python with these words would have first on its path."""
    return cwd if argv[1] == "-m" else os.path.dirname(os.path.realpath(os.path.join(cwd, argv[1])))


def hidden_by(argv: "List[str]", cwd: str) -> str:
    """Why the program would have other modules than these: some of its own have their names; "": it would not."""
    place = directory_of(argv, cwd)
    own = "" if argv[1] == "-m" else os.path.realpath(os.path.join(cwd, argv[1]))
    for entry in sorted(os.listdir(place)):
        path = os.path.join(place, entry)
        name, _, kind = entry.partition(".")
        is_module = kind.endswith(("py", "so")) or os.path.exists(os.path.join(path, "__init__.py"))
        if is_module and name in sys.modules and name != "__main__" and os.path.realpath(path) != own:
            return "its own %s has the name of a module that is preloaded" % entry
    return ""


def receive(server: socket.socket) -> "Optional[Tuple[Dict[str, Any], List[int]]]":
    """The next request, and its descriptors; None: the agent wants no more."""
    streams = array.array("i")  # type: array.array[int]
    size, told, _, _ = server.recvmsg(8, socket.CMSG_LEN(3 * streams.itemsize))
    for _, _, numbers in told:
        streams.frombytes(numbers)
    text = b""
    while size and len(text) < int(size):
        more = server.recv(int(size) - len(text))
        if not more:
            return None
        text += more
    return (json.loads(text.decode("ascii")), list(streams)) if size else None


def forked() -> int:
    """The pid of a process that is no child of this one; there 0.  Raises OSError."""
    read, write = os.pipe()
    try:
        between = os.fork()
        if between:
            os.close(write)
            write = -1
            told = os.read(read, 16)
            os.waitpid(between, 0)
            if not told:
                raise OSError("it cannot fork")
            return int(told)
        try:
            pid = os.fork()
            if pid:
                os.write(write, b"%d" % pid)
                os._exit(0)
        except OSError:
            os._exit(1)
        return 0
    finally:
        os.close(read)
        if write >= 0:
            os.close(write)


def read_nothing() -> None:
    """Have the input of this process end at once."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)


def become(request: "Dict[str, Any]", streams: "List[int]", shown: Shown) -> None:
    """Be the process of that trial, and wait at its gate."""
    os.setsid()
    for number, each in enumerate(streams):
        os.dup2(each, number)
        os.close(each)
    if request["cpus"]:
        os.sched_setaffinity(0, request["cpus"])
    os.chdir(request["cwd"])
    own = request["own"]
    os.environ.update(own)
    shown.change(
        [os.fsencode(each) for each in request["argv"]],
        [os.fsencode("%s=%s" % each) for each in own.items()],
    )
    os.write(1, b"tflaunch-ready\n")
    if not os.read(0, 3):
        os._exit(125)
    read_nothing()
    os.dup2(2, 1)
    # Python's own generator has done this; the seed of numpy's would be the same in all trials.
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()


def prepare_stacks(site: str) -> None:
    """Have this Python tell its stacks, as tflaunch.in_task.stacks_site has a new one do."""
    place = os.path.dirname(site)
    more = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = place + (":" + more if more else "")
    with open(site) as file:
        text = file.read().rpartition("go_on()")[0]  # the next `sitecustomize` has run
    exec(compile(text, site, "exec"), {"__name__": "sitecustomize", "__file__": site})  # noqa: S102 - as `site` does


def trace_the_program(
    kind: "Type[BaseException]", error: BaseException, trace: "Optional[TracebackType]"
) -> None:
    """As the usual hook, without the frames of this file."""
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    error.__traceback__ = trace
    sys.__excepthook__(kind, error, trace)


def run(argv: "List[str]") -> None:
    """Run the program as Python does that is started with these words."""
    sys.excepthook = trace_the_program
    if hasattr(sys, "orig_argv"):
        sys.orig_argv = argv  # novm
    if not getattr(sys.flags, "safe_path", False):
        sys.path.insert(0, directory_of(argv, os.getcwd()))
    if argv[1] == "-m":
        import runpy

        sys.argv = argv[2:]
        runpy.run_module(argv[2], run_name="__main__", alter_sys=True)
        return
    sys.argv = argv[1:]
    main = sys.modules["__main__"] = type(sys)("__main__")
    path = os.path.join(os.getcwd(), argv[1])
    from importlib.machinery import SourceFileLoader

    main.__file__, main.__loader__ = path, SourceFileLoader("__main__", path)
    main.__dict__["__builtins__"] = builtins
    with open(path, "rb") as file:
        code = compile(file.read(), path, "exec", dont_inherit=True)
    exec(code, main.__dict__)  # noqa: S102 - as Python does


def serve() -> "Dict[str, Any]":
    """Fork for each request; returns in the forked process, what it runs, or ends."""
    server = socket.socket(fileno=os.dup(0))
    read_nothing()

    def say(**what: "Any") -> None:
        server.sendall(json.dumps(what).encode("ascii") + b"\n")

    own = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [place for place in sys.path if place != own]
    why = imported(sys.argv[1:-1])
    shown = Shown()
    os.environ.pop(ROOM)
    os.chdir("/")
    sys.stdout.flush()
    sys.stderr.flush()
    ctypes.CDLL(None).fflush(None)
    gc.collect()
    gc.freeze()  # else the first collection of each trial would copy all of its memory
    say(why=why or harmed_by_forks())
    while True:
        got = receive(server)
        if got is None:
            os._exit(0)
        request, streams = got
        try:
            why = hidden_by(request["argv"], request["cwd"])
            pid = -1 if why else forked()
        except OSError as error:
            why = str(error)
        if not (why or pid):
            server.close()
            become(request, streams, shown)
            return request
        for each in streams:
            os.close(each)
        say(**({"why": why} if why else {"pid": pid}))


if __name__ == "__main__":
    trial = serve()
    if trial["site"]:
        prepare_stacks(trial["site"])
    run(trial["argv"])
