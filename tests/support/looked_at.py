"""Programs that would notice a look at their stacks, and looks at them, as fast as they answer.

    python -m tests.support.looked_at [--looks N] [--only PROGRAM]... [PYTHON...]

Each program does the same work again and again and compares the results; in the end it says that they were the same.
It fails, or dies, where a look harms it.  By default each Python that is installed gets 20,000 looks at each program.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.support.agent_over_pipes import interpreters
from tflaunch.agent.host import processes, python_site
from tflaunch.agent.tasks.asked import Asked, StacksAnswer

LOOKS = 20_000

# Work that is done until the looks are over; whatever it gives must be equal each time.
PRELUDE = """
import os, sys, threading
first = []
count = 0
def again():
    if count == 3:
        print("ready", flush=True)
    return not os.path.exists(os.environ["STOP"])
def same(found):
    global count
    count += 1
    first or first.append(found)
    if found != first[0]:
        os.write(2, b"another result: %r" % (found,))
        os._exit(3)
"""

PROGRAMS = {
    "pools": """
from concurrent.futures import ThreadPoolExecutor
def work(number):
    return sum(each * each for each in range(number))
while again():
    with ThreadPoolExecutor(6) as pool:
        same(list(pool.map(work, range(200, 230))))
""",
    "threads": """
def work(number, found):
    found[number] = sorted(str(each) for each in range(50 + number))[-1]
while again():
    found = {}
    threads = [threading.Thread(target=work, args=(each, found)) for each in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    same(sorted(found.items()))
""",
    # A step in C without the lock, threads in Python that feed it, and threads of C that call Python.
    "training": """
import queue, steps
batches = queue.Queue(4)
def load():
    while again():
        batch = bytes(bytearray(number % 251 for number in range(5000)))
        batches.put(batch)
for _ in range(3):
    threading.Thread(target=load, daemon=True).start()
while again():
    called = []
    steps.call(lambda: called.append(sum(range(100))), 4)
    same((steps.train(batches.get(), 100), called))
""",
    "generators": """
def numbers(depth):
    if depth:
        for each in numbers(depth - 1):
            yield each + 1
        yield from numbers(depth - 2 if depth > 1 else 0)
    else:
        yield 1
def pairs():
    yield from zip(numbers(9), (each for each in numbers(9)))
while again():
    same(sum(one * other for one, other in pairs()))
""",
    "asyncio": """
import asyncio
async def fetch(number):
    await asyncio.sleep(0)
    loop = asyncio.get_running_loop()
    return number + await loop.run_in_executor(None, lambda: sum(range(number)))
async def batches(number):
    for each in range(number):
        await asyncio.sleep(0)
        yield each
async def work():
    found = await asyncio.gather(*[fetch(each) for each in range(20)])
    return [*found, *[each async for each in batches(20)]]
async def main():
    while again():
        same(await work())
asyncio.run(main())
""",
    "recursion": """
sys.setrecursionlimit(10000)
def deep(number):
    if not number:
        return sum(range(50))
    if number % 50 == 0:
        return max([number], key=lambda each: deep(each - 1)) + deep(0)
    return deep(number - 1) + 1
def count_down(number):
    return number and 1 + count_down(number - 1)
threading.stack_size(64 << 20)
def work():
    while again():
        same((deep(900), count_down(3000)))
thread = threading.Thread(target=work)
thread.start()
thread.join()
""",
    # Finalizers run where the program runs, and no object lives longer for a look.
    "garbage": """
import gc
gc.set_threshold(20)
main = threading.get_ident()
elsewhere = []
class Node:
    def __init__(self):
        self.me = self
    def __del__(self):
        if threading.get_ident() != main:
            elsewhere.append(threading.get_ident())
def work():
    nodes = [Node() for _ in range(300)]
    return len(nodes)
def deep(number):
    return deep(number - 1) if number else work()
while again():
    same((deep(60), len(elsewhere), threading.active_count()))
""",
    "forks": """
import multiprocessing, warnings
warnings.simplefilter("error")
warnings.showwarning = lambda *_, **__: os._exit(4)
def child():
    pid = os.fork()
    if not pid:
        os._exit(threading.active_count())
    return os.waitpid(pid, 0)[1] >> 8
def square(number):
    return number * number
if __name__ == "__main__":
    context = multiprocessing.get_context("fork")
    while again():
        results = context.SimpleQueue()
        worker = context.Process(target=lambda: results.put(square(7)))
        worker.start()
        same((child(), results.get(), worker.join(), worker.exitcode))
""",
    "sleeps": """
import time
def pool():
    threading.Event().wait()
for _ in range(3):
    threading.Thread(target=pool, daemon=True).start()
while again():
    began = time.monotonic()
    time.sleep(0.02)
    same(time.monotonic() - began >= 0.02)
""",
}

STEPS = """
#include <Python.h>
#include <pthread.h>
static PyObject *train(PyObject *self, PyObject *args) {
    Py_buffer batch; int rounds; double loss = 0;
    if (!PyArg_ParseTuple(args, "y*i", &batch, &rounds)) return NULL;
    Py_BEGIN_ALLOW_THREADS
    for (int round = 0; round < rounds; round++)
        for (Py_ssize_t at = 0; at < batch.len; at++)
            loss = loss * 0.5 + ((unsigned char *)batch.buf)[at];
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&batch);
    return PyFloat_FromDouble(loss);
}
static void *calls(void *function) {
    PyGILState_STATE state = PyGILState_Ensure();
    PyObject *found = PyObject_CallObject(function, NULL);
    Py_XDECREF(found);
    PyGILState_Release(state);
    return NULL;
}
static PyObject *call(PyObject *self, PyObject *args) {
    PyObject *function; int count; pthread_t threads[64];
    if (!PyArg_ParseTuple(args, "Oi", &function, &count)) return NULL;
    Py_BEGIN_ALLOW_THREADS
    for (int each = 0; each < count; each++) pthread_create(&threads[each], NULL, calls, function);
    for (int each = 0; each < count; each++) pthread_join(threads[each], NULL);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}
static PyMethodDef methods[] = {
    {"train", train, METH_VARARGS, ""}, {"call", call, METH_VARARGS, ""}, {NULL, NULL, 0, NULL}
};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "steps", NULL, -1, methods};
PyMODINIT_FUNC PyInit_steps(void) { return PyModule_Create(&module); }
"""


def build_steps(python: str, directory: Path) -> None:
    """The module `steps`, in C, for that Python."""
    asked = "import sysconfig; print(sysconfig.get_path('include'), sysconfig.get_config_var('EXT_SUFFIX'))"
    include, suffix = subprocess.check_output([python, "-I", "-c", asked], text=True).split()
    (directory / "steps.c").write_text(STEPS)
    subprocess.run(
        ["gcc", "-O1", "-shared", "-fPIC", "-pthread", f"-I{include}", "-o", f"steps{suffix}", "steps.c"],
        cwd=directory,
        check=True,
    )


def has_headers(python: str) -> bool:
    """Whether modules in C can be built for that Python."""
    asked = "import sysconfig; print(sysconfig.get_path('include'))"
    include = subprocess.check_output([python, "-I", "-c", asked], text=True).strip()
    return (Path(include) / "Python.h").exists()


class LookedAt:
    """A program that runs, prepared as a task is, once it has printed a line."""

    def __init__(self, python: str, program: str, directory: Path, *options: str) -> None:
        self._stop = directory / "stop"
        directory.chmod(0o700)
        file = directory / "program.py"
        file.write_text(program)
        env = {
            **os.environ,
            "PYTHONPATH": python_site.put(str(directory)),
            "STOP": str(self._stop),
        }
        self.child = subprocess.Popen(
            [python, *options, file],
            env=env,
            cwd=directory,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.child.stdout is not None
        self.first_line = self.child.stdout.readline()
        process = processes.read(self.child.pid)
        assert process is not None, self.end()
        self.process = process

    def look(self) -> StacksAnswer:
        """One look, as the agent takes it."""
        return look_at(self.process)

    def end(self) -> tuple[int, str, str]:
        """Its exit code, what else it has written, and its stderr; its stdin ends."""
        self._stop.touch()
        out, err = self.child.communicate(timeout=60)
        return self.child.returncode, out, err

    def kill(self) -> None:
        """End it in any case."""
        self.child.kill()
        self.child.communicate()


def look_at(process: processes.Process) -> StacksAnswer:
    """One look at a process, as the agent takes it."""
    asked = Asked(process, time.monotonic(), str)
    try:
        while True:
            answer = asked.tick(time.monotonic())
            if answer is not None:
                return answer
            time.sleep(0.0005)
    finally:
        asked.close()


def play(python: str, name: str, looks: int, directory: Path) -> str:
    """Look so often at the program; returns what was wrong with it, "" for nothing."""
    if name == "training":
        build_steps(python, directory)
    program = LookedAt(python, PRELUDE + PROGRAMS[name], directory)
    silent = 0
    for number in range(looks):
        answer = program.look()
        silent += answer.found is None
        if program.child.poll() is not None:
            return f"it ended at look {number}: {program.end()}"
    code, _, err = program.end()
    wrong = [f"{silent} looks brought nothing"] if silent else []
    wrong += [f"exit code {code}, stderr {err!r}"] if code or err else []
    return ", ".join(wrong)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--looks", type=int, default=LOOKS)
    parser.add_argument("--only", action="append", choices=PROGRAMS, help="this program")
    parser.add_argument("pythons", nargs="*", metavar="PYTHON")
    chosen = parser.parse_args()
    failed = False
    for python in chosen.pythons or interpreters():
        for name in chosen.only or PROGRAMS:
            with tempfile.TemporaryDirectory() as directory:
                began = time.monotonic()
                wrong = play(python, name, chosen.looks, Path(directory))
            failed = failed or bool(wrong)
            seconds = time.monotonic() - began
            print(
                f"{python}  {name}: {chosen.looks} looks in {seconds:.0f} s: {wrong or 'no harm'}", flush=True
            )
    sys.exit(failed)


if __name__ == "__main__":
    main()
