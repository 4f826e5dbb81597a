"""The `sitecustomize` that each task's Python runs at its start: after it, one signal has that Python write its stacks.

Python's own faulthandler writes them, whatever C++ code the program is in and whichever thread holds the interpreter's
lock, and the program goes on.  They do not go into the log, but into an unlinked file that only the process has; its
name says whose it is: NAME, then process, start time and first thread.  tflaunch.agent.tasks.live_stacks sends the
signal, and reads the file.

SITE is text: Python 2.7 must parse it, too, and an agent writes it into a directory of the run that stands first on
the task's PYTHONPATH.  It takes that directory out of `sys.path`, and has the next `sitecustomize` run in its place.
Where there is none, the ImportError is the one that `site` expects then.
"""

NAME = "tflaunch-stacks"
SIGNAL_BELOW_MAX = 3  # SIGRTMAX - 3: the C library takes the first ones, and TensorFlow and Python none

SITE = """\
# tflaunch put this here: it lets `tflaunch stacks` ask this Python where its threads are.  --no-stacks leaves it out.
def prepare():
    try:
        import _signal
        import _thread
        import faulthandler
        import os
    except ImportError:
        return
    if hasattr(faulthandler, "tflaunch_file"):
        return
    number = _signal.SIGRTMAX - %(below)d

    def create(name):
        if hasattr(os, "memfd_create"):
            try:
                return os.memfd_create(name)
            except OSError:
                pass
        for place in (os.path.dirname(__file__), "/dev/shm"):
            path = os.path.join(place, name)
            try:
                made = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
            except OSError:
                continue
            os.unlink(path)
            return made
        raise OSError(name)

    def register():
        try:
            stat = os.open("/proc/self/stat", os.O_RDONLY)
            text = os.read(stat, 4096)
            os.close(stat)
            start = int(text[text.rindex(b")"):].split()[20])
            made = create("%(name)s-%%d-%%d-%%x" %% (os.getpid(), start, _thread.get_ident()))
            faulthandler.register(number, file=made, all_threads=True, chain=False)
            faulthandler.tflaunch_file = made
        except Exception:
            pass

    register()
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=register)


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
""" % {"below": SIGNAL_BELOW_MAX, "name": NAME}
