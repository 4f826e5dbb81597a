"""What is shipped to a host, and the line that boots it there."""

from __future__ import annotations

import functools
import importlib.util
import shlex
import warnings
import zlib
from pathlib import Path

import tflaunch

# The modules of the agent (★ in the layout): standard library only, Python 3.8+, nothing from outside this set.
SHIPPED = (
    "tflaunch",
    "tflaunch.wire",
    "tflaunch.gpu_probe",
    "tflaunch.errors",
    "tflaunch.job",
    "tflaunch.outcome",
    "tflaunch.supervise",
    "tflaunch.diagnose",
    "tflaunch.limits",
    "tflaunch.oversight",
    "tflaunch.links",
    "tflaunch.drive",
    "tflaunch.agent",
    "tflaunch.agent.processes",
    "tflaunch.agent.rundir",
    "tflaunch.agent.ports",
    "tflaunch.agent.leases",
    "tflaunch.agent.journal",
    "tflaunch.agent.logs",
    "tflaunch.agent.viewer",
    "tflaunch.agent.tickets",
    "tflaunch.agent.facts",
    "tflaunch.agent.tasks",
    "tflaunch.agent.dial",
    "tflaunch.agent.look",
    "tflaunch.agent.stacks",
    "tflaunch.agent.relay",
    "tflaunch.agent.guard",
    "tflaunch.agent.cards",
    "tflaunch.agent.daemon",
    "tflaunch.agent.peers",
    "tflaunch.agent.entrusted",
    "tflaunch.coordinator",
    "tflaunch.agent.archive",
    "tflaunch.agent.visit",
    "tflaunch.agent.ledger",
    "tflaunch.agent.garbage",
)

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
    "while len(b)<n:\\n"
    " d=os.read(0,n-len(b))\\n"
    ' if len(d)==0:sys.exit("tflaunch: the channel ended while the agent was on its way")\\n'
    " b+=d\\n"
    'exec(zlib.decompress(b))""")'
)

# Modules are compiled only when they are imported; `get_source` lets tracebacks show their lines.
LOADER = """
import sys
class Shipped:
    sources = %r
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name in cls.sources:
            is_package, origin, _ = cls.sources[name]
            return type(sys.__spec__)(name, cls, origin=origin, is_package=is_package)
    @classmethod
    def create_module(cls, spec):
        return None
    @classmethod
    def exec_module(cls, module):
        _, origin, text = cls.sources[module.__name__]
        module.__file__ = origin
        exec(compile(text, origin, "exec"), module.__dict__)
    @classmethod
    def get_source(cls, name):
        return cls.sources[name][2]
sys.meta_path.insert(0, Shipped)
from tflaunch.agent import main
try:
    main(sys.argv[3:])
except Exception:  # the interpreter itself would print it without the lines
    import traceback
    traceback.print_exc()
    sys.exit(1)
"""


def shipped_files() -> dict[str, Path]:
    """The source file of each shipped module."""
    root = Path(tflaunch.__file__).parent
    found = {}
    for name in SHIPPED:
        relative = Path(*name.split(".")[1:])
        package = root / relative / "__init__.py"
        found[name] = package if package.exists() else root / relative.with_suffix(".py")
    return found


@functools.cache
def payload() -> bytes:
    """The agent: what the booted reader takes first."""
    root = Path(tflaunch.__file__).parent
    sources = {
        name: (path.name == "__init__.py", f"<tflaunch>/{path.relative_to(root)}", path.read_text("utf-8"))
        for name, path in shipped_files().items()
    }
    return zlib.compress((LOADER % sources).encode("utf-8"), 9)


def boot_line(verb: str, run: str = "", host: str = "", run_dir: str = "", python: str = "") -> str:
    """The command for the login shell of a host; `payload()` goes to its input, then frames."""
    words = [READER, python, "tflaunch-agent", str(len(payload())), verb, run, host, run_dir]
    return f"exec /bin/sh -c '{FIND_PYTHON}' " + " ".join(shlex.quote(word) for word in words)


@functools.cache
def packed_module(name: str) -> bytes:
    """An importable one-file module, to be sent to a host that lacks it: its source, compressed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the `pynvml` package has an import hook that warns of itself
        spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(name)
    return zlib.compress(Path(spec.origin).read_bytes(), 9)
