"""What a host runs first: it finds the agent's modules in the store, or asks the launcher for them, and starts `main`.

tflaunch.sessions.payload sends this file at every boot, with a call of `load` behind it.  So it is short, and imports
nothing of tflaunch before the store has been found.

The store is `<parent>/code`, beside the shipped code: a file of all the agent's sources, and each module as this Python
compiled it when it was first imported (which saves half of the CPU that a boot takes).
"""

import _signal as signal  # type: ignore[import-not-found]  # `signal` itself takes longer to load than the agent
import gc
import marshal
import os
import sys
import zlib
from _frozen_importlib import ModuleSpec

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any, Dict, List, Optional, Sequence


class Modules:
    """An entry of `sys.meta_path`, by which Python finds and loads all modules of the package tflaunch."""

    def __init__(self, packages: "List[str]") -> None:
        self.packages = packages  # those modules that hold others, and nothing else that a host needs
        self.packed = b""  # all sources, marshalled and compressed
        self.sources = {}  # type: Dict[str, str]  # by module, once one was needed
        self.stored = ""  # how the path of the stored sources begins; "" where nothing may be stored
        self.compiled = ""  # likewise, of the modules that this Python has compiled

    def find(self, ancestry: str, digest: str, configured: str, make: bool) -> None:
        """Read the sources from the store, and with `make` make a store where there is none; raises OSError.

        It trusts only a directory of this user's alone that no other user could replace.
        """
        parent = os.path.expanduser(configured or "/var/tmp")  # noqa: S108 - see `weak_place`
        known = {}  # type: Dict[str, Any]
        exec(ancestry, known)  # noqa: S102 - tflaunch.agent.files.ancestry
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

    def receive(self, lacks: bytes, frame: bytes) -> bytes:
        """Ask the launcher for the sources, by the message `lacks`, and store them.

        They come in the frame whose JSON is `frame`.  Returns the other frames that the launcher sent meanwhile.
        """
        os.write(1, lacks)
        signal.alarm(120)  # ends this process where the network is gone: then nothing may ever come
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
        """By this, tracebacks show the lines; raises ImportError."""
        if not self.sources:
            self.sources = marshal.loads(zlib.decompress(self.packed))  # noqa: S302
        if name not in self.sources:
            raise ImportError(name)
        return self.sources[name]

    def path(self, name: str) -> str:
        parts = name.split(".")[1:] + ["__init__"] * (name in self.packages)
        return "/".join(["<tflaunch>", *parts]) + ".py"


def read(path: str) -> bytes:
    """What `store` has written there; b"" if that is damaged.  Raises OSError."""
    with open(path, "rb", 0) as file:  # unbuffered: this reads some forty files at every boot
        data = file.read()
    return data[4:] if zlib.crc32(data[4:]).to_bytes(4, "big") == data[:4] else b""


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
    *, packages: "List[str]", digest: str, ancestry: str, magic: bytes, lacks: bytes, frame: bytes
) -> None:
    """Run the agent, and end this process.

    `packages` are the modules that only hold others; `digest` is of all that is sent to hosts; `ancestry` is the source
    of tflaunch.agent.files.ancestry.  The rest are bytes of the wire: what an agent says first, the message `lacks`,
    and the JSON of the frame that answers it.
    """
    gc.disable()  # nothing of what is loaded here is garbage; `main` enables it again where the process stays
    os.write(1, magic)
    modules, early = Modules(packages), b""
    try:
        modules.find(ancestry, digest, sys.argv[6], sys.argv[3] == "start")  # a visit makes no store
    except OSError:
        pass
    if not modules.packed:
        early = modules.receive(lacks, frame)
    sys.meta_path.insert(0, modules)
    from tflaunch.agent.main import main

    try:
        main(sys.argv[3:], early)
        os._exit(0)  # nothing is left to be done, and to take an interpreter down takes a while
    except Exception:  # the interpreter itself would print it without the lines
        import traceback

        traceback.print_exc()
        sys.exit(1)
