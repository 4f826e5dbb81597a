"""Variables whose values only a shell would expand, as `PATH: /opt/bin:$PATH`: tasks get them as they stand; pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

from tflaunch.hosts import Hostfile, fold
from tflaunch.protocol.job import JobSpec
from tflaunch.text.numbers import agreeing

# `$NAME` as a whole part of a path or of a list of paths; elsewhere it may be anything, also part of a password.
_VARIABLE = re.compile(r"(?:^|(?<=[:/ ]))\$(?:[A-Za-z_]\w*|\{[A-Za-z_]\w*\})(?=$|[:/ ])")
_HOME = re.compile(r"(?:^|(?<=:))~[\w.-]*(?=/)")
_PLAIN = re.compile(r"[\w./:$~+,@%{}-]+")


def warnings(job: JobSpec, hostfile: Hostfile, as_here: Collection[str] = ()) -> Iterator[str]:
    """Return a sentence for each value that holds `$NAME` or `~/`, and will not be expanded.

    as_here: variables that --env passes on with the value that they have here, which a shell has expanded.
    """
    by_value: dict[tuple[str, str], list[str]] = {}
    for host in hostfile.hosts:
        for name, value in host.env.items():
            by_value.setdefault((name, value), []).append(host.name)
    for (name, value), hosts in by_value.items():
        where = "" if len(hosts) == len(hostfile.hosts) else f" of {fold(hosts)}"
        yield from _warning(f"env{where}", name, value)
    for name, value in job.env.items():
        if name in job.masked:
            yield from _warning("--env-file", name, value, shown=False)
        elif name not in as_here:
            yield from _warning("--env", name, value)
    for each, role in job.roles.items():
        for name, value in role.env.items():
            if name not in role.literal:
                yield from _warning(f"--job-env {each}", name, value)


def _warning(where: str, name: str, value: str, *, shown: bool = True) -> Iterator[str]:
    found = list(dict.fromkeys([*_VARIABLE.findall(value), *_HOME.findall(value)]))
    if not found:
        return
    last = f" and {found[-1]}" if len(found) > 1 else ""
    what = ", ".join(found[:-1] or found) + last
    verb = agreeing(len(found), "stays as it is", "stay as they are")
    line = f"export {name}={_in_shell(value) if shown else '…'}"
    yield f"{where}: {what} in {name} {verb}: tflaunch expands nothing; in the hostfile, setup: {line}"


def _in_shell(value: str) -> str:
    """Return the value as a shell expands it, also where it has spaces."""
    if _PLAIN.fullmatch(value):
        return value
    quoted = re.sub(
        r'(["\\`])', r"\\\1", _HOME.sub(lambda found: "$HOME" if found[0] == "~" else found[0], value)
    )
    return f'"{quoted}"'
