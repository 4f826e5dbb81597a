"""Placeholders such as `{index}` in what users write for tasks: how they are found, and which there are.

A placeholder is a name alone in braces.  Any other brace stays as it is, so JSON needs nothing:
`{"a": {"b": 1}}`, `${HOME}`, `{0}`.  `{{index}}` is the text `{index}`.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable

NAMES = (
    "job", "index", "host", "port", "address", "rank", "world_size", "local_rank", "chief_host", "chief_port",
    "ps_hosts", "worker_hosts", "cluster_json", "run",
)  # fmt: skip
HOSTS = "_hosts"  # also {JOB_hosts} for each job of the run
# After $ it is a variable of a shell, or of the program's own.
_FOUND = re.compile(r"(?<![${])(\{+)([A-Za-z_][A-Za-z0-9_]*)(\}+)")


def filled(text: str, value_of: Callable[[str], str]) -> str:
    """Return `text` with the value of each placeholder in its place, and `{name}` for `{{name}}`."""

    def value(found: re.Match[str]) -> str:
        opening, name, closing = found.groups()
        both = min(len(opening), len(closing))
        inner = value_of(name) if both % 2 else f"{{{name}}}"
        more = (both - 1) // 2 if both % 2 else both // 2 - 1
        before, after = len(opening) - both + more, len(closing) - both + more
        return f"{'{' * before}{inner}{'}' * after}"

    return _FOUND.sub(value, text)


def names_in(text: str) -> list[str]:
    """Return the names of the placeholders in `text`, each once."""
    names: dict[str, None] = {}

    def note(name: str) -> str:
        names[name] = None
        return ""

    filled(text, note)
    return list(names)


def unknown(text: str, jobs: Iterable[str] | None = None) -> tuple[str, str] | None:
    """Return (a name in `text` that is no placeholder, what to write instead); None if all are.

    `jobs` are the job names of the run, None where they are not known yet: then any {JOB_hosts} will do.
    """
    known = (*NAMES, *(f"{job}{HOSTS}" for job in jobs or ()))
    for name in names_in(text):
        if name in known or (jobs is None and name.endswith(HOSTS)):
            continue
        near = difflib.get_close_matches(name.lower(), known, n=1)
        every = ", ".join(f"{{{each}}}" for each in known)
        meant = f"did you mean {{{near[0]}}}?" if near else f"there are {every};"
        return name, f"{meant} for {{{name}}} itself, write {{{{{name}}}}}"
    return None
