"""What tflaunch sends to a host: the command line that boots an agent there, the loader, and the agent's modules."""

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
from tflaunch.inputs.options.values import USER_NAME
from tflaunch.protocol import wire

# The files and rooms that an agent is made of: standard library only, Python 3.8+, and they import only each other.
_ROOT = Path(tflaunch.__file__).parent
_AGENT_PARTS = (
    "__init__.py",
    "gpu_probe.py",
    "text/__init__.py",
    "text/numbers.py",
    "text/safe.py",
    "protocol",
    "in_task/__init__.py",
    "in_task/stacks_site.py",
    "diagnosis",
    "lifecycle",
    "frameworks",
    "agent",
)

# The next two scripts become words of a command for a login shell (sh, csh, fish), each in one pair of single quotes.
# So neither word may hold a single quote, newline or exclamation mark, or a backslash before a quote or backslash.


def _in_one_line(script: str) -> str:
    return " ".join(line.strip() for line in script.strip().splitlines())


# Finds a python3 that runs $0, the reader: in a slot that of its holder, which is new enough.  $1 is the interpreter
# that the hostfile names; the rest is for the agent.
FIND_PYTHON = _in_one_line("""
    TFLAUNCH_BOOT="$0"; TFLAUNCH_NAMED="$1"; shift;
    case "$TFLAUNCH_NAMED" in "~/"*) TFLAUNCH_NAMED="$HOME/${TFLAUNCH_NAMED#??}";; esac;
    export TFLAUNCH_BOOT TFLAUNCH_NAMED;
    for p in "${TFLAUNCH_SLOT_PYTHON:-python3}" python3 "$TFLAUNCH_NAMED"
      /usr/bin/python3 /usr/local/bin/python3 /usr/libexec/platform-python; do
      command -v "$p" >/dev/null 2>&1 && exec "$p" -I -S -X utf8 -c "$0" "$@";
    done;
    echo "tflaunch: no python3 on this host (PATH is $PATH)" >&2; exit 127
""")

# Reads the loader and runs it, in a namespace that has os, sys, zlib.  An interpreter that is too old hands over to the
# named one, or to a newer one beside it; Python 2 must be able to parse this.
_READ = """\
import os,sys,zlib
env=os.environ;reader=env.get("TFLAUNCH_BOOT","");named=env.pop("TFLAUNCH_NAMED","")
words=["-I","-S","-X","utf8","-c",reader]+sys.argv[1:]
if sys.version_info<(3,8):
 if os.access(named,os.X_OK):os.execv(named,[named]+words)
 for n in range(19,7,-1):
  p="python3.%d"%n
  if os.system(p+" -c 0 >/dev/null 2>&1")==0:os.execvp(p,[p]+words)
 sys.exit("tflaunch: python %d.%d is too old, the agent needs 3.8 or newer"%sys.version_info[:2])
env.pop("TFLAUNCH_BOOT","");size=int(sys.argv[2]);got=bytes()
# Where the network is gone before all has come, nothing may ever end this process but the alarm.
import _signal;_signal.alarm(120)
# Exactly so many bytes: sys.stdin would read ahead, into the frames behind them.
while len(got)<size:
 more=os.read(0,size-len(got))
 if len(more)==0:sys.exit("tflaunch: the channel ended while the agent was on its way")
 got+=more
 # What zlib writes at its best begins with these two bytes.
 if len(got)>1 and not list(got[:2])==[120,218]:
  sys.exit("tflaunch: a start-up file of the login shell has read what was sent to the agent")
_signal.alarm(0);exec(zlib.decompressobj().decompress(got))
"""
_CODE = [line for line in _READ.splitlines() if not line.lstrip().startswith("#")]
READER = 'exec("""' + "\\n".join(_CODE) + '""")'

# Before the reader, where root acts for another user: root's process becomes that user's before it looks at any file,
# and begins anew, without root's memory and variables; root's own Python may lie where that user cannot read it.
_AS_USER = """\
import os,pwd,sys
u="%s"
try:p=pwd.getpwnam(u)
except KeyError:sys.exit("tflaunch: this host knows no user "+u)
if not os.getuid()==p.pw_uid:
 if os.getuid():sys.exit("tflaunch: only root may act for "+u+" on this host: log in there as root")
 for k in list(os.environ):
  if k not in ("PATH","LANG","TFLAUNCH_BOOT","TFLAUNCH_NAMED"):del os.environ[k]
 os.initgroups(u,p.pw_gid);os.setgid(p.pw_gid);os.setuid(p.pw_uid)
 os.chdir("/")
 os.environ.update(HOME=p.pw_dir,USER=u,LOGNAME=u,XDG_RUNTIME_DIR="/run/user/%%d"%%p.pw_uid)
 for e in ("/usr/bin/python3","/usr/local/bin/python3",sys.executable):
  if os.access(e,os.X_OK):os.execv(e,[e,"-I","-S","-X","utf8","-c",os.environ["TFLAUNCH_BOOT"]]+sys.argv[1:])
 sys.exit("tflaunch: no python3 that "+u+" may run on this host")
"""

# Only the loader is sent at every boot; a host that has not stored this agent yet asks for the rest.
_LOADER = "tflaunch.agent.loader"
_ANCESTRY = "tflaunch.protocol.ancestry"
_AGENT = "agent"  # the type of the message that brings the modules
_AWAY = "`run_dir` does not answer there: nothing came for 5 s"
_AWAY_HINT = "is its file server up? `df` there hangs, too; or set `run_dir:` in the hostfile to a local disk"
_LEVEL = 8  # of zlib: 2 kB less for each host than at 6, for 30 ms
_MARSHAL = 2  # a format of marshal that every Python 3 reads, for strings
_packing = threading.Lock()


@functools.cache
def shipped_files() -> dict[str, Path]:
    """The modules that make an agent, its loader among them, each with its source file."""
    files = [
        file
        for part in _AGENT_PARTS
        for file in ([_ROOT / part] if part.endswith(".py") else sorted((_ROOT / part).rglob("*.py")))
    ]
    names = [".".join(["tflaunch", *file.relative_to(_ROOT).with_suffix("").parts]) for file in files]
    return dict(zip((name.removesuffix(".__init__") for name in names), files, strict=True))


def lean(source: str) -> str:
    """The same module without comments, docstrings and `if TYPE_CHECKING:`, the other lines in their places.

    That is a third less to send.  This knows only how the modules here are written (a parser would take longer than the
    launch of a small run); a test compares the syntax trees of every module before and after.
    """
    lines = []
    inside = False  # a string of several lines, that ...
    doc = False  # ... is a docstring
    opens = True  # a docstring may begin here
    typing = False  # within `if TYPE_CHECKING:`
    for line in source.split("\n"):
        text = line.lstrip()
        odd = line.count('"""') % 2 == 1
        typing = typing and (text != line or not text)
        if typing:
            lines.append("")
        elif line == "if TYPE_CHECKING:":
            typing = True
            lines.append(line + " 0")
        elif inside:
            lines.append("" if doc else line)
            inside = not odd
        elif text.startswith('"""') and opens:
            lines.append(line[: len(line) - len(text)] + '""')
            inside = doc = odd
            opens = False
        elif text.startswith("#"):
            lines.append("")
        else:
            code, _, comment = line.partition("  # ")
            if '"' in comment or "'" in comment:  # it may be the inside of a string
                code = line
            lines.append(code)
            inside, doc = odd, False
            opens = code.endswith(":") or (opens and not text)
    return "\n".join(lines)


def agent() -> bytes:
    """The frame with the agent's modules, for a host whose loader says that it `lacks` them."""
    with _packing:  # many hosts may say so at once
        return _packed()


@functools.cache
def _contents() -> dict[str, bytes]:
    # Read once: a file may change while this process lives, and a digest must mean the same for ever.
    return {name: path.read_bytes() for name, path in shipped_files().items()}


def _lean(module: str) -> str:
    return lean(_contents()[module].decode("utf-8"))


@functools.cache
def _packed() -> bytes:
    sources = {name: _lean(name) for name in _contents() if name != _LOADER}
    return wire.encode(_AGENT, zlib.compress(marshal.dumps(sources, _MARSHAL), _LEVEL))


def packages() -> list[str]:
    """The modules that only contain others."""
    return [name for name, path in shipped_files().items() if path.name == "__init__.py"]


def digest() -> str:
    """The name of this agent, by which hosts know whether they have stored it.

    Of the files as they are: packing them takes longer, and most hosts have stored this agent already.
    """
    return hashlib.sha256(b"".join([Path(__file__).read_bytes(), *_contents().values()])).hexdigest()[:16]


@functools.cache
def loader() -> bytes:
    """What the reader on the host takes first: the loader and a call of it; frames may follow at once."""
    arguments = {
        "packages": packages(),
        "digest": digest(),
        "ancestry": _lean(_ANCESTRY),
        "magic": wire.MAGIC,
        "lacks": wire.encode("lacks"),
        "frame": wire.encode(_AGENT)[8:],
        "away": wire.encode("failed", reason=_AWAY, hint=_AWAY_HINT),
    }
    script = f"{_lean(_LOADER)}\nload(**{arguments!r})\n"
    return zlib.compress(script.encode("utf-8"), 9)


def reader_as(user: str) -> str:
    """The reader for root's log-in that acts for that user; raises ValueError for what is no name of an account."""
    if not USER_NAME.fullmatch(user):
        raise ValueError(user)
    return 'exec("""' + "\\n".join([*(_AS_USER % user).splitlines(), *_CODE]) + '""")'


def boot_line(
    verb: str, run: str = "", host: str = "", run_dir: str = "", python: str = "", *, as_user: str = ""
) -> str:
    """The command for the login shell of a host; its stdin then gets `loader()`, and frames after it.

    `as_user`: root's process acts for that user, and has that user's rights; no `python` of a hostfile runs as root.
    """
    if as_user:
        python = ""
    words = [
        reader_as(as_user) if as_user else READER,
        python,
        "tflaunch-agent",
        str(len(loader())),
        verb,
        run,
        host,
        run_dir,
    ]
    return f"exec /bin/sh -c '{FIND_PYTHON}' " + " ".join(shlex.quote(word) for word in words)


@functools.cache
def packed_module() -> bytes:
    """The source, compressed, of the module that `tflaunch.gpu_probe` needs, for a host that has no such module."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the `pynvml` package has an import hook that warns of itself
        spec = importlib.util.find_spec(MODULE)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(MODULE)
    return zlib.compress(Path(spec.origin).read_bytes(), 9)
