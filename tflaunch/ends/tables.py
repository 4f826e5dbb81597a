"""All rules, in the order in which they are tried on a line."""

from __future__ import annotations

import re

from tflaunch.ends import (
    files,
    flags,
    gpus,
    libraries,
    memory,
    modules,
    network,
    python,
    pytorch_jax,
    shells,
    signals,
    tensorflow,
)
from tflaunch.ends.rule import AFTERMATH, ANYWHERE, FINAL, STACK, Rule, SignalRule

RULES: tuple[Rule, ...] = (
    *flags.RULES,
    *flags.LOGGED,
    *libraries.RULES,
    *modules.RULES,
    *gpus.RULES,
    *memory.RULES,
    *files.SUBPROCESS,
    *files.RULES,
    *network.RULES,
    *pytorch_jax.RULES,
    *tensorflow.RULES,
    *python.RULES,
    *shells.RULES,
)
SIGNALS: tuple[SignalRule, ...] = (*signals.KNOWN, *signals.ABORTS, *signals.LIKELY)
PATTERNS = tuple((re.compile(rule.words), rule) for rule in RULES)
BY_PLACE = {
    where: tuple(each for each in PATTERNS if each[1].where == where)
    for where in (FINAL, STACK, ANYWHERE, AFTERMATH)
}
