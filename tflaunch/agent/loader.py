"""What a host runs first: it finds the agent's modules in the store, or asks the launcher for them, and starts `main`.

tflaunch.sessions.payload sends this file at every boot, followed by a call of `load`.  So it is short, and imports
nothing of tflaunch before it has found the store.

The store is `<parent>/code`, beside the shipped code; a slot's holder may name a parent that outlives the slot.  It
holds one file with all the agent's sources, and each module as this Python compiled it at its first import. The
compiled modules save half of the CPU time that a boot takes.
"""

import _signal as signal  # type: ignore[import-not-found]  # `signal` itself takes longer to load than the agent
import gc
import marshal
import os
import sys
import time
import zlib
from _frozen_importlib import ModuleSpec

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any, Dict, List, Optional, Sequence


REACH_S = 5  # tflaunch.sessions.payload and docs/reliability.md name it, too


class Modules:
    """An entry of `sys.meta_path`, by which Python finds and loads all modules of the package tflaunch."""

    def __init__(self, packages: "List[str]") -> None:
        self.packages = packages  # the modules that only contain others, and nothing else that a host needs
        self.packed = b""  # all sources, marshalled and compressed
        self.sources = {}  # type: Dict[str, str]  # by module; filled when the first source is needed
        self.stored = ""  # the path prefix of the stored sources; "" where nothing may be stored
        self.compiled = ""  # the path prefix of the modules that this Python has compiled, or ""

    def find(self, ancestry: str, digest: str, configured: str, make: bool) -> None:
        """Read the sources from the store; where there is none, make one if `make` is set.  Raises OSError.

        It trusts a directory only if that is private to this user and no other user could replace it.
        """
        parent = os.path.expanduser(configured or "/var/tmp")  # noqa: S108 - see `weak_place`
        known = {}  # type: Dict[str, Any]
        exec(ancestry, known)  # noqa: S102 - tflaunch.protocol.ancestry
        if known["weak_place"](parent):
            return
        parent += "/tflaunch-%d" % os.getuid()
        for path in (parent, parent + "/code"):
            if make and not os.path.lexists(path):
                os.mkdir(path, 0o700)
            info = os.lstat(path)
            if info.st_mode & 0o170077 != 0o040000 or info.st_uid != os.getuid():
                return
        self.stored = path + "/agent-" + digest
        self.compiled = self.stored + "-%s-%x-" % (sys.implementation.cache_tag, sys.hexversion)
        self.packed = read(self.stored + ".z")

    def reach(self, ancestry: str, configured: str) -> bool:
        """Whether that directory answers within REACH_S: a file server that is away keeps who asks it for ever.

        Another process asks, which may stay for ever and holds no part of the channel.
        """
        pid = os.fork()
        if pid == 0:
            try:
                os.closerange(0, 64)
                with open("/proc/self/comm", "w") as name:
                    name.write("tflaunch-asks")  # agent/host/foreign.py
                known = {}  # type: Dict[str, Any]
                exec(ancestry, known)  # noqa: S102 - as in `find`
                known["weak_place"](os.path.expanduser(configured))
                os.statvfs(os.path.expanduser(configured))
            finally:
                os._exit(0)
        for pause in range(REACH_S * 100):
            if os.waitpid(pid, os.WNOHANG)[0]:
                return True
            time.sleep(0.01 if pause else 0.001)
        os.kill(pid, signal.SIGKILL)
        return False

    def receive(self, lacks: bytes, frame: bytes) -> bytes:
        """Send the launcher the message `lacks`, receive the sources and store them.

        The sources come in the frame whose JSON is `frame`.  Returns the other frames that came meanwhile.
        """
        os.write(1, lacks)
        signal.alarm(120)  # ends this process if the network is gone and the answer never comes
        data, start = b"", 0
        while not self.packed:
            more = os.read(0, 1 << 18)
            if not more:
                sys.exit("tflaunch: the channel ended while the agent was on its way")
            data += more
            while len(data) >= start + 8 and not self.packed:
                body = start + 8 + int.from_bytes(data[start : start + 4], "big")
                end = body + int.from_bytes(data[start + 4 : start + 8], "big")
                if len(data) < end:
                    break
                if data[start + 8 : body] == frame:
                    self.packed, data = data[body:end], data[:start] + data[end:]
                start = end
        signal.alarm(0)
        if self.stored:
            store(self.stored + ".z", self.packed)
        return data

    def find_spec(
        self, name: str, path: "Optional[Sequence[str]]" = None, target: "Optional[ModuleType]" = None
    ) -> "Optional[ModuleSpec]":
        if not (name + ".").startswith("tflaunch."):
            return None
        return ModuleSpec(name, self, origin=self.path(name), is_package=name in self.packages)  # type: ignore[arg-type]

    def create_module(self, spec: "ModuleSpec") -> None:
        pass  # Python's own will do

    def exec_module(self, module: "ModuleType") -> None:
        name = module.__name__
        module.__file__ = self.path(name)
        if name in self.packages:
            return  # nothing to run, so no file to read
        try:
            code = marshal.loads(read(self.compiled + name + ".pyc"))  # noqa: S302 - see `find`
        except Exception:
            code = compile(self.get_source(name), module.__file__, "exec")
            if self.compiled:
                store(self.compiled + name + ".pyc", marshal.dumps(code))
        exec(code, module.__dict__)  # noqa: S102

    def get_source(self, name: str) -> str:
        """Return a module's source, so that tracebacks show its lines; raises ImportError."""
        if not self.sources:
            self.sources = marshal.loads(zlib.decompress(self.packed))  # noqa: S302
        if name not in self.sources:
            raise ImportError(name)
        return self.sources[name]

    def path(self, name: str) -> str:
        parts = name.split(".")[1:] + ["__init__"] * (name in self.packages)
        return "/".join(["<tflaunch>", *parts]) + ".py"


def read(path: str) -> bytes:
    """Return what `store` wrote to that file, b"" if the file is damaged.  Raises OSError."""
    with open(path, "rb", 0) as file:  # unbuffered: this reads some forty files at every boot
        told, data = file.read(4), file.read()  # a slice of one piece would be a copy
    return data if zlib.crc32(data).to_bytes(4, "big") == told else b""


def store(path: str, data: bytes) -> None:
    """Write the file as a whole or not at all."""
    part = "%s.%s.part" % (path, os.urandom(8).hex())
    try:
        disk = os.statvfs(os.path.dirname(path))
        # The run needs the rest of the disk more; some file systems count no files.
        if disk.f_bavail * disk.f_frsize > 1 << 24 and (disk.f_favail > 256 or not disk.f_files):
            with open(part, "xb") as file:
                file.write(zlib.crc32(data).to_bytes(4, "big") + data)
            os.rename(part, path)
    except OSError:
        try:
            os.unlink(part)
        except OSError:
            pass


def load(
    *,
    packages: "List[str]",
    digest: str,
    ancestry: str,
    magic: bytes,
    lacks: bytes,
    frame: bytes,
    away: bytes,
) -> None:
    """Run the agent, and end this process.

    `packages` are the modules that only contain other modules; `digest` covers everything that is sent to hosts;
    `ancestry` is the source of tflaunch.protocol.ancestry.  The other arguments are bytes of the wire: what an
    agent sends first, the message `lacks`, the JSON of the frame that answers it, and what it sends when its directory
    is `away`.
    """
    gc.disable()  # nothing that is loaded here is garbage; `main` enables it again in a process that stays
    os.write(1, magic)
    modules, early = Modules(packages), b""
    if sys.argv[6] and not modules.reach(ancestry, sys.argv[6]):
        os.write(1, away)
        os._exit(0)
    parent = os.environ.pop("TFLAUNCH_SLOT_CODE", "") or sys.argv[6]
    if parent != sys.argv[6] and not modules.reach(ancestry, parent):
        parent = sys.argv[6]  # the run can do without what the holder of its slot keeps
    try:
        modules.find(ancestry, digest, parent, sys.argv[3] == "start")  # a visit makes no store
    except OSError:
        pass
    if not modules.packed:
        early = modules.receive(lacks, frame)
    sys.meta_path.insert(0, modules)
    from tflaunch.agent.main import main

    try:
        main(sys.argv[3:], early)
        os._exit(0)  # nothing is left to do, and shutting an interpreter down takes long
    except Exception:  # the interpreter itself would print it without the lines
        import traceback

        traceback.print_exc()
        sys.exit(1)
