"""What is shipped to a host, and the line that boots it there."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import marshal
import shlex
import threading
import warnings
import zlib
from pathlib import Path

import tflaunch
from tflaunch.gpu_probe import MODULE
from tflaunch.protocol import wire

# What an agent is made of, files and rooms (★ in the layout): standard library only, Python 3.8+, nothing from outside.
_ROOT = Path(tflaunch.__file__).parent
_AGENT_PARTS = ("__init__.py", "gpu_probe.py", "protocol", "diagnosis", "lifecycle", "agent")

# The next two texts pass through a login shell (sh, csh, fish) in one pair of single quotes each: they hold
# no single quote, no newline, no exclamation mark, and no backslash before a quote or a backslash.

# $0 is the reader, $1 the interpreter that the hostfile names, the rest is for the agent.
FIND_PYTHON = (
    'TFLAUNCH_BOOT="$0"; TFLAUNCH_NAMED="$1"; shift; '
    'case "$TFLAUNCH_NAMED" in "~/"*) TFLAUNCH_NAMED="$HOME/${TFLAUNCH_NAMED#??}";; esac; '
    "export TFLAUNCH_BOOT TFLAUNCH_NAMED; "
    'for p in python3 "$TFLAUNCH_NAMED" /usr/bin/python3 /usr/local/bin/python3 /usr/libexec/platform-python; do '
    'command -v "$p" >/dev/null 2>&1 && exec "$p" -I -S -X utf8 -c "$0" "$@"; done; '
    'echo "tflaunch: no python3 on this host (PATH is $PATH)" >&2; exit 127'
)

# Takes exactly as many bytes as it was told (sys.stdin would read ahead, into the frames behind them); an
# interpreter that is too old hands over to the named one or a newer one beside it.  Python 2 must parse it.
# Where the network is gone before all has come, nobody may ever say so: the alarm ends it.  What zlib writes at its
# best begins with the bytes 120 and 218: where it does not, something else has read the beginning.
READER = (
    'exec("""import os,sys,zlib\\n'
    'e=os.environ;c=e.get("TFLAUNCH_BOOT","");m=e.pop("TFLAUNCH_NAMED","")\\n'
    'a=["-I","-S","-X","utf8","-c",c]+sys.argv[1:]\\n'
    "if sys.version_info<(3,8):\\n"
    " if os.access(m,os.X_OK):os.execv(m,[m]+a)\\n"
    " for n in range(19,7,-1):\\n"
    '  p="python3.%d"%n\\n'
    '  if os.system(p+" -c 0 >/dev/null 2>&1")==0:os.execvp(p,[p]+a)\\n'
    ' sys.exit("tflaunch: python %d.%d is too old, the agent needs 3.8 or newer"%sys.version_info[:2])\\n'
    'e.pop("TFLAUNCH_BOOT","");n=int(sys.argv[2]);b=bytes()\\n'
    "import _signal as signal;signal.alarm(120)\\n"
    "while len(b)<n:\\n"
    " d=os.read(0,n-len(b))\\n"
    ' if len(d)==0:sys.exit("tflaunch: the channel ended while the agent was on its way")\\n'
    " b+=d\\n"
    " if len(b)>1 and not list(b[:2])==[120,218]:"
    'sys.exit("tflaunch: a start-up file of the login shell has read what was sent to the agent")\\n'
    'signal.alarm(0);z=zlib.decompressobj();exec(z.decompress(b))""")'
)

# Only this is sent at every boot.  The agent is kept beside the shipped code: its sources, and each module compiled
# when it was first imported (half of the CPU that a boot takes).  Only a directory that is this user's alone, and in
# whose place nobody else can put another, is believed, and none is made for a visit.  Where the sources lack, they are
# asked for, and the frames that were sent meanwhile are held back.
# `get_source` lets tracebacks show their lines.  Nobody looks for garbage among what is only just loaded: whoever stays
# and works enables that again.
LOADER = """
import gc, marshal, os, sys
gc.disable()
class Shipped:
    names, digest, magic, lacks, frame, ancestry = %r
    packages = [name[:-1] for name in names.split() if name[-1] == "/"]
    modules = frozenset(names.replace("/", "").split())
    packed = early = b""
    sources = {}
    kept = ""
    @classmethod
    def find_kept(cls, verb, configured):
        parent = os.path.expanduser(configured or "/var/tmp")  # noqa: S108 - checked by `private`
        known = {}
        exec(cls.ancestry, known)
        if known["weak_place"](parent):
            return
        parent += "/tflaunch-%%d" %% os.getuid()
        for path in (parent, parent + "/code"):
            if verb == "start" and not os.path.lexists(path):
                os.mkdir(path, 0o700)
            info = os.lstat(path)
            if info.st_mode & 0o170077 != 0o040000 or info.st_uid != os.getuid():
                return
        cls.place = path + "/agent-%%s" %% cls.digest
        cls.kept = cls.place + "-%%s-%%x-" %% (sys.implementation.cache_tag, sys.hexversion)
        cls.packed = cls.read(cls.place + ".z")
    @staticmethod
    def read(path):
        with open(path, "rb") as file:
            check, data = file.read(4), file.read()
        return data if zlib.crc32(data).to_bytes(4, "big") == check else b""
    @classmethod
    def ask(cls):
        os.write(1, cls.lacks)
        signal.alarm(120)
        data, start = b"", 0
        while not cls.packed:
            more = os.read(0, 1 << 18)
            if not more:
                sys.exit("tflaunch: the channel ended while the agent was on its way")
            data += more
            while len(data) >= start + 8 and not cls.packed:
                body = start + 8 + int.from_bytes(data[start : start + 4], "big")
                end = body + int.from_bytes(data[start + 4 : start + 8], "big")
                if len(data) < end:
                    break
                if data[start + 8 : body] == cls.frame:
                    cls.packed, cls.early = data[body:end], data[:start] + data[end:]
                start = end
        signal.alarm(0)
        if cls.kept:
            cls.keep(cls.place + ".z", cls.packed)
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name in cls.modules:
            return type(sys.__spec__)(name, cls, origin=cls.path(name), is_package=name in cls.packages)
    @classmethod
    def create_module(cls, spec):
        return None
    @classmethod
    def exec_module(cls, module):
        name = module.__name__
        module.__file__ = cls.path(name)
        try:
            code = marshal.loads(cls.read(cls.kept + name + ".pyc"))
        except Exception:
            code = compile(cls.get_source(name), module.__file__, "exec")
            if cls.kept:
                cls.keep(cls.kept + name + ".pyc", marshal.dumps(code))
        exec(code, module.__dict__)
    @classmethod
    def path(cls, name):
        _, *parts = name.split(".")
        return "/".join(["<tflaunch>", *parts, *["__init__"] * (name in cls.packages)]) + ".py"
    @staticmethod
    def keep(path, data):
        part = "%%s.%%s.part" %% (path, os.urandom(8).hex())
        try:
            disk = os.statvfs(os.path.dirname(path))
            # Else the run needs it more; some file systems count no files.
            if disk.f_bavail * disk.f_frsize > 1 << 24 and (disk.f_favail > 256 or not disk.f_files):
                with open(part, "xb") as file:
                    file.write(zlib.crc32(data).to_bytes(4, "big") + data)
                os.rename(part, path)
        except OSError:
            try:
                os.unlink(part)
            except OSError:
                pass
    @classmethod
    def get_source(cls, name):
        if not cls.sources:
            cls.sources = marshal.loads(zlib.decompress(cls.packed))
        return cls.sources[name]
os.write(1, Shipped.magic)
try:
    Shipped.find_kept(sys.argv[3], sys.argv[6])
except OSError:
    pass
if not Shipped.packed:
    Shipped.ask()
sys.meta_path.insert(0, Shipped)
from tflaunch.agent.main import main
try:
    main(sys.argv[3:], Shipped.early)
    os._exit(0)  # nothing is left to be done, and taking an interpreter down takes a while
except Exception:  # the interpreter itself would print it without the lines
    import traceback
    traceback.print_exc()
    sys.exit(1)
"""
_ANCESTRY = "tflaunch.agent.files.ancestry"
_AGENT = "agent"  # the type of the message that brings it
_MARSHAL = 2  # the format that every Python 3 reads; it holds nothing but strings
_packing = threading.Lock()


@functools.cache
def shipped_files() -> dict[str, Path]:
    """The modules that make an agent, each with its source file."""
    files = [
        file
        for part in _AGENT_PARTS
        for file in ([_ROOT / part] if part.endswith(".py") else sorted((_ROOT / part).rglob("*.py")))
    ]
    names = [".".join(["tflaunch", *file.relative_to(_ROOT).with_suffix("").parts]) for file in files]
    return dict(zip((name.removesuffix(".__init__") for name in names), files, strict=True))


def lean(source: str) -> str:
    """The same module without its comments and docstrings, each line in its place: a third less to send.

    It knows how the modules here are written, no more (a parser would take longer than the launch of a small run);
    the tests compare what comes out, for each of them.
    """
    lines = []
    inside, doc, opens = False, False, True  # a text of several lines; it is a docstring; one may begin here
    for line in source.split("\n"):
        text = line.lstrip()
        odd = line.count('"""') % 2 == 1
        if inside:
            lines.append("" if doc else line)
            inside = not odd
        elif text.startswith('"""') and opens:
            lines.append(line[: len(line) - len(text)] + '""')
            inside = doc = odd
            opens = False
        elif text.startswith("#"):
            lines.append("")
        else:
            lines.append(line)
            inside, doc = odd, False
            opens = text.endswith(":") or (opens and not text)
    return "\n".join(lines)


def agent() -> bytes:
    """The frame with the agent's sources, for a host whose loader has said that it `lacks` them."""
    with _packing:  # many hosts may say so at once
        return _packed()


@functools.cache
def _contents() -> dict[str, bytes]:
    # Once: the files may change while this process lives, and a digest must mean the same for ever.
    return {name: path.read_bytes() for name, path in shipped_files().items()}


@functools.cache
def _packed() -> bytes:
    sources = {name: lean(content.decode("utf-8")) for name, content in _contents().items()}
    return wire.encode(_AGENT, zlib.compress(marshal.dumps(sources, _MARSHAL)))


@functools.cache
def loader() -> bytes:
    """What the booted reader takes first; frames may follow at once."""
    files = shipped_files()
    names = " ".join(name + "/" * (path.name == "__init__.py") for name, path in files.items())
    # Of the files as they are: to make the agent of them takes longer, and mostly no host lacks it.
    digest = hashlib.sha256(b"".join([Path(__file__).read_bytes(), *_contents().values()]))
    ancestry = lean(_contents()[_ANCESTRY].decode("utf-8")) if _ANCESTRY in files else ""
    words = (
        names,
        digest.hexdigest()[:16],
        wire.MAGIC,
        wire.encode("lacks"),
        wire.encode(_AGENT)[8:],
        ancestry,
    )
    return zlib.compress((LOADER % (words,)).encode("utf-8"), 9)


def boot_line(verb: str, run: str = "", host: str = "", run_dir: str = "", python: str = "") -> str:
    """The command for the login shell of a host; `loader()` goes to its input, then frames."""
    words = [READER, python, "tflaunch-agent", str(len(loader())), verb, run, host, run_dir]
    return f"exec /bin/sh -c '{FIND_PYTHON}' " + " ".join(shlex.quote(word) for word in words)


@functools.cache
def packed_module() -> bytes:
    """The module for the probe, `gpu_probe.MODULE`, for a host that lacks it: its source, compressed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the `pynvml` package has an import hook that warns of itself
        spec = importlib.util.find_spec(MODULE)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(MODULE)
    return zlib.compress(Path(spec.origin).read_bytes(), 9)
