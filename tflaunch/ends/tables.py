"""All rules, in the order in which they are tried on a line."""

from __future__ import annotations

import functools
import re

from tflaunch.ends import (
    files,
    flags,
    gpu_faults,
    libraries,
    modules,
    network,
    out_of_memory,
    python,
    pytorch_jax,
    shells,
    signals,
    tensorflow,
)
from tflaunch.ends.end_rule import EndRule, SignalRule, pattern

RULES: tuple[EndRule, ...] = (
    *out_of_memory.FILES,
    *flags.RULES,
    *flags.LOGGED,
    *libraries.RULES,
    *modules.RULES,
    *gpu_faults.RULES,
    *out_of_memory.RULES,
    *files.SUBPROCESS,
    *files.RULES,
    *network.RULES,
    *pytorch_jax.RULES,
    *tensorflow.RULES,
    *python.RULES,
    *shells.RULES,
)
SIGNALS: tuple[SignalRule, ...] = (*signals.KNOWN, *signals.ABORTS, *signals.LIKELY)


@functools.cache
def patterns(where: str) -> tuple[tuple[re.Pattern[str], EndRule], ...]:
    """Return the rules for lines of that place, each with its pattern; to compile them all takes 45 ms."""
    return tuple((re.compile(pattern(rule.words)), rule) for rule in RULES if rule.where == where)
