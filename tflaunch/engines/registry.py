"""The engine of a word, loaded when it is used; tflaunch.inputs.engine_words has the table."""

from __future__ import annotations

import functools
import importlib
from typing import cast

from tflaunch.engines.engine import Engine
from tflaunch.inputs.engine_words import VARIABLE, engines
from tflaunch.protocol.errors import UsageError


def names() -> tuple[str, ...]:
    """The words of all engines."""
    return tuple(engines())


def engine(word: str) -> Engine | None:
    """The engine of that word; None where there is none.  Raises UsageError for one of $TFLAUNCH_ENGINES that fails."""
    module = engines().get(word)
    return None if module is None else _load(word, module)


@functools.cache
def _load(word: str, module: str) -> Engine:
    try:
        return cast("Engine", importlib.import_module(module).ENGINE)
    except (ImportError, AttributeError) as error:
        raise UsageError(
            f"the engine {word!r} cannot be loaded: {error}", f"{VARIABLE} names a module that has an ENGINE"
        ) from None
