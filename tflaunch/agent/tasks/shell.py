"""Writes the shell file that runs before a program: its environment and its `setup`; so no argv holds a secret."""

import os

from tflaunch.agent.host.rundir import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, Iterable, List

# A login bash runs this file: `module` and `conda` need one.  After the profile come the task's own variables, but
# for some that a profile may set; then the setup, which ends at the first line that fails; then what the plan decides.
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


def exports(names: "Iterable[str]", env: "Dict[str, str]", yielding: "Iterable[str]" = ()) -> str:
    """Lines of shell that export these variables of `env`; the `yielding` ones only where they are not set."""
    import shlex

    keep = {name: "${%s-%s}" % (name, shlex.quote(env[name])) for name in yielding if name in env}
    lines = (
        "%s=%s; export %s" % (name, keep.get(name) or shlex.quote(env[name]), name)
        for name in names
        if name in env
    )
    return "\n".join(lines)


def write(
    path: str,
    env: "Dict[str, str]",
    setup: "Iterable[str]",
    decided: str,
    then: str,
    *,
    yielding: "Iterable[str]" = (),
) -> None:
    """Write the file, which only this user may read; raises OSError.

    A profile may set the `yielding` variables otherwise.  `decided` are lines of shell, as `exports` makes them; `then`
    is the rest of the file.
    """
    text = SETUP % {
        "environment": exports(env, env, yielding),
        "setup": "\n".join(setup),
        "decided": decided,
    }
    replace(path, text + then)


def login(path: str) -> "List[str]":
    """The command that runs such a file in a login shell of this host."""
    return ["/bin/bash", "-l", path] if os.access("/bin/bash", os.X_OK) else ["/bin/sh", path]
