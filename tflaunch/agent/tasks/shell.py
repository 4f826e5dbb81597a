"""The shell that comes before a program: what its `setup` changes, and the file that holds it, no secret in an argv."""

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, Iterable, List

# A file that a login bash runs (module and conda want one).  After the profile comes the requested environment,
# then the setup, which ends at the first line that fails, then what the plan has decided.
SETUP = """\
%(environment)s
trap 'echo "tflaunch: setup failed with exit code $?" >&2' EXIT
set -e
{
:
%(setup)s
} </dev/null >&2
set +e
trap - EXIT
%(decided)s
"""


def exports(names: "Iterable[str]", env: "Dict[str, str]") -> str:
    """Lines that give these variables of `env` to a shell."""
    import shlex

    return "\n".join("export %s=%s" % (name, shlex.quote(env[name])) for name in names if name in env)


def write(path: str, env: "Dict[str, str]", setup: "Iterable[str]", decided: str, then: str) -> None:
    """Make the file, for its user alone; raises OSError."""
    text = SETUP % {"environment": exports(env, env), "setup": "\n".join(setup), "decided": decided}
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(text + then)


def login(path: str) -> "List[str]":
    """The command that runs such a file on this host."""
    return ["/bin/bash", "-l", path] if os.access("/bin/bash", os.X_OK) else ["/bin/sh", path]
