"""The `sitecustomize` that each task's Python runs at its start: after it, that Python tells its stacks when asked.

There are two ways to ask, and tflaunch.agent.tasks.live_stacks takes the second only where the first brings nothing:

1. A thread sleeps in read(), in C, on a pipe.  Asked, it takes the interpreter's lock and writes down
   `sys._current_frames()`: meanwhile no other thread runs Python, and no frame changes.
2. A signal to a single thread has faulthandler write that thread's own stack: where somebody keeps the lock for ever.

faulthandler with all threads is neither: it reads the list of threads without its lock, also when the interpreter's is
held, and a thread of C that enters Python may be half in that list (SIGSEGV, Python 3.11).

It writes as faulthandler does.  The thread runs none of the program's code, as a garbage collection would: it has none
while it makes objects that count for that (by the threshold: `gc.isenabled()` is the program's), and holds the frames
of one thread at a time, for some microseconds.

The answer does not go into the log, but into an unlinked file that only the process has, in memory where that can be:
a disk may keep who writes, and with it the lock.  Its name says whose it is: NAME, then process, start time, first
thread and the pipe's inode.

A program does not notice that thread: `threading` does not count it, no signal is delivered to it (those to the process
are for the program's threads, also where they wait for one), it ends before the interpreter does, each forked child
gets one of its own (but not what subprocess forks for a `preexec_fn`: that becomes another program at once), and Python
3.12 does not warn of a fork because of it: it holds nothing that the child could miss.

It has functions of its own of _thread and posix: gevent and its like exchange them, and it would run in the program's
thread.  Where there is no interpreter's lock nobody may read the stacks of threads that run.  Once the program runs it
calls nothing that a sandbox may forbid: there any call that the program does not need itself would end it.

SITE is text: Python 2.7 must parse it, too, and an agent writes it into a directory of the run that stands first on
the task's PYTHONPATH.  It takes that directory out of `sys.path`, and has the next `sitecustomize` run in its place.
Where there is none, the ImportError is the one that `site` expects then.
"""

NAME = "tflaunch-stacks"  # the name of the thread, too, of which the kernel keeps 15 characters
LINES = 3000  # of one answer; after them no other thread begins, and the first thread is the first
DEPTH = 100  # of the frames of a thread, the innermost
SIGNAL_BELOW_MAX = 3  # SIGRTMAX - 3: the C library takes the first ones, and TensorFlow and Python none

SITE = """\
# tflaunch put this here: it lets `tflaunch stacks` ask this Python where its threads are.  --no-stacks leaves it out.
def prepare():
    try:
        import _signal
        import _warnings
        import atexit
        import faulthandler
        import gc
        import posix as os
        import sys
        from _thread import allocate_lock, get_ident, stack_size, start_new_thread
    except ImportError:
        return
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        return
    number = _signal.SIGRTMAX - %(below)d
    signals = list(range(1, 32)) + list(range(_signal.SIGRTMIN, _signal.SIGRTMAX + 1))
    current = {}  # what this process has: asks, file (descriptors, and what they are open on), runs

    def mark():
        stat = os.open("/proc/self/stat", os.O_RDONLY)
        text = os.read(stat, 4096)
        os.close(stat)
        return "%(name)s-%%d-%%d-" %% (os.getpid(), int(text[text.rindex(b")"):].split()[20]))

    def reopened(number, flags):
        try:
            return os.open("/proc/self/fd/%%d" %% number, flags)
        finally:
            os.close(number)

    def create(name):
        if hasattr(os, "memfd_create"):
            try:
                return os.memfd_create(name)
            except OSError:
                pass
        for place in ("/dev/shm", __file__.rpartition("/")[0]):
            path = "%%s/%%s" %% (place, name)
            try:
                made = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
            except OSError:
                continue
            os.unlink(path)
            return made
        raise OSError(name)

    # The program may close any descriptor, and get its number for a file of its own.
    def opened(number):
        info = os.fstat(number)
        return number, (info.st_dev, info.st_ino)

    def still(number, inode):
        try:
            info = os.fstat(number)
            return (info.st_dev, info.st_ino) == inode
        except OSError:
            return False

    def add(text, ident):
        text.append("Thread 0x%%x (most recent call first):\\n" %% ident)
        frame = sys._current_frames().get(ident)
        left = %(depth)d
        while frame is not None and left:
            code = frame.f_code
            text.append('  File "%%.500s", line %%s in %%.500s\\n' %% (code.co_filename, frame.f_lineno, code.co_name))
            frame = frame.f_back
            left -= 1

    def stacks(main):
        text = []
        add(text, main)
        for ident in list(sys._current_frames()):
            if ident not in (main, get_ident()) and len(text) < %(lines)d:
                add(text, ident)
        return "".join(text).encode("ascii", "backslashreplace")

    def answer(main, asks, file, runs, begins):
        try:
            try:
                name = os.open("/proc/thread-self/comm", os.O_WRONLY)
                os.write(name, b"%(name)s")
                os.close(name)
            except OSError:
                pass
            goes_on = True
            begins.release()
            while goes_on:
                asked = os.read(asks[0], 16)
                collects = gc.isenabled()
                gc.disable()
                threshold = gc.get_threshold()[0]
                gc.set_threshold(0)
                if collects:
                    gc.enable()
                try:
                    if "over" in current or not still(*file):
                        break
                    os.write(file[0], stacks(main) + b"end " + asked)
                    goes_on = still(*asks)
                finally:
                    if gc.get_threshold()[0] == 0:  # the program has set no other meanwhile
                        gc.set_threshold(threshold)
        except Exception:
            pass
        finally:
            runs.release()

    def start(place):
        read, write = os.pipe()
        os.close(write)
        asks = reopened(read, os.O_RDWR)
        main = get_ident()
        try:
            name = "%%s%%x-%%d" %% (place, main, os.fstat(asks).st_ino)
            file = reopened(create(name), os.O_RDWR | os.O_APPEND)
        except Exception:
            os.close(asks)
            raise
        runs = allocate_lock()
        runs.acquire()
        begins = allocate_lock()
        begins.acquire()
        current.update(asks=opened(asks), file=opened(file), runs=runs)
        mask = _signal.pthread_sigmask(_signal.SIG_BLOCK, signals)
        size = stack_size(1 << 19)
        try:
            start_new_thread(answer, (main, current["asks"], current["file"], runs, begins))
        except Exception:
            current.clear()
            os.close(asks)
            os.close(file)
            raise
        finally:
            stack_size(size)
            _signal.pthread_sigmask(_signal.SIG_SETMASK, mask)
        faulthandler.register(number, file=file, all_threads=False, chain=False)
        begins.acquire(True, 1.0)

    def in_child():
        try:
            for each in ("asks", "file"):
                if each in current and still(*current[each]):
                    os.close(current[each][0])
            over = "over" in current
            current.clear()
            if not over and sys._getframe(1).f_code.co_name != "_execute_child":
                start(mark())
        except Exception:
            pass

    def before_fork():
        try:
            module = sys.modules.get("warnings", _warnings)
            text = "This process (pid=%%d) is multi-threaded, use of %%s() may lead to deadlocks in the child."
            ours = [
                ("ignore", text %% (os.getpid(), name), DeprecationWarning, None, 0) for name in ("fork", "forkpty")
            ]
            for each in quieted + ours:
                while each in module.filters:
                    module.filters.remove(each)
            quieted[:] = ours
            runs = current.get("runs")
            if runs is not None and runs.locked() and len(os.listdir("/proc/self/task")) == 2:
                module.filters[:0] = ours
        except Exception:
            pass

    def at_exit():
        try:
            current["over"] = True
            if "runs" in current and still(*current["asks"]):
                os.set_blocking(current["asks"][0], False)
                try:
                    os.write(current["asks"][0], b"\\n")
                except BlockingIOError:
                    pass  # it is full: the thread wakes
                current["runs"].acquire(True, 1.0)
        except Exception:
            pass

    place = mark()
    for each in os.listdir("/proc/self/fd"):
        try:
            if place in os.readlink("/proc/self/fd/" + each):
                return  # this is another interpreter of the same process
        except OSError:
            pass
    start(place)
    atexit.register(at_exit)
    quieted = []
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=in_child)
        if sys.version_info >= (3, 12):
            os.register_at_fork(before=before_fork)


def go_on():
    import sys

    me = sys.modules.pop("sitecustomize", None)  # in this variable it lives on to the end of this function
    here = __file__.rpartition("/")[0]
    sys.path[:] = [place for place in sys.path if place != here]
    sys.path_importer_cache.pop(here, None)
    __import__("sitecustomize")
    return me


try:
    prepare()
except Exception:
    pass
go_on()
""" % {"below": SIGNAL_BELOW_MAX, "name": NAME, "lines": LINES, "depth": DEPTH}
