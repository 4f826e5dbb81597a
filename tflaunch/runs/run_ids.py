"""The ids of runs: what is one, and a new one."""

from __future__ import annotations

import re
import secrets

from tflaunch.protocol.errors import UsageError

RUN_ID = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_BASE32 = "abcdefghijklmnopqrstuvwxyz234567"
_SUFFIX_LENGTH = 6
_STEM_LENGTH = 33  # with a dash and six characters: 40


def new_run_id(stem: str) -> str:
    """Return a fresh id such as `trainer-k3f9x2`: at most 40 characters, safe as a file name anywhere."""
    name = re.sub(r"[^a-z0-9]+", "-", stem.lower()).strip("-")[:_STEM_LENGTH].rstrip("-")
    return f"{name or 'run'}-{''.join(secrets.choice(_BASE32) for _ in range(_SUFFIX_LENGTH))}"


def name_of(run_id: str) -> str:
    """The name in an id that `new_run_id` has made: `trainer` of `trainer-k3f9x2`; "" for any other id."""
    name, _, suffix = run_id.rpartition("-")
    return name if len(suffix) == _SUFFIX_LENGTH and set(suffix) <= set(_BASE32) else ""


def is_run_id(text: str) -> bool:
    """Return whether `text` is 1 to 64 of a-z, 0-9, `.`, `_` and `-`, begins with a letter or a digit, without `..`."""
    return bool(RUN_ID.fullmatch(text)) and ".." not in text


def check_run_id(text: str) -> str:
    """Return `text` when it is a run id; raises UsageError for any other text, which might be a path."""
    if not is_run_id(text):
        raise UsageError(
            f"not a run id: {text[:80]!r}",
            "It is 1 to 64 of a-z, 0-9, '.', '_' and '-', begins with a letter or a digit, and has no '..'.",
        )
    return text
