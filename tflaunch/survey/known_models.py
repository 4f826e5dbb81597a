"""The models of GPUs that this machine has seen on hosts, kept for the shell to complete.

    $XDG_CACHE_HOME/tflaunch/gpu-models.json, else ~/.cache/tflaunch/gpu-models.json

Nothing depends on it: a file that is missing, broken or cannot be written is as good as an empty one.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable
from pathlib import Path

from tflaunch.text.safe import one_line

_MOST, _LONGEST = 64, 100  # models; characters of one
_MOST_BYTES = 65_536


def known_models() -> list[str]:
    """Return the models, as their drivers name them, those seen last first."""
    with contextlib.suppress(OSError, ValueError, RecursionError), _path().open("rb") as file:
        found = json.loads(file.read(_MOST_BYTES))
        if isinstance(found, list):
            return [name for name in found if isinstance(name, str)][:_MOST]
    return []


def remember_models(names: Iterable[str]) -> None:
    """Add these models; a host may have sent anything as a name."""
    seen = [one_line(name)[:_LONGEST] for name in names if name]
    before = known_models()
    models = list(dict.fromkeys([*sorted({*seen}), *before]))[:_MOST]
    if models == before:
        return
    import tempfile

    path = _path()
    with contextlib.suppress(OSError):  # a home that is read-only, or full
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
            try:
                json.dump(models, file)
                file.flush()
                os.replace(file.name, path)  # noqa: PTH105 - tempfile has names, not paths
            except OSError:
                Path(file.name).unlink(missing_ok=True)
                raise


def _path() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME", "")
    home = os.path.expanduser("~/.cache")  # noqa: PTH111 - without a home, no error
    return Path(cache if cache.startswith("/") else home, "tflaunch", "gpu-models.json")
