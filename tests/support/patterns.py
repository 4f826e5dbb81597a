"""Patterns and paths to draw."""

from __future__ import annotations

import re

from hypothesis import strategies as st

from tflaunch.inputs.patterns import translated

NAMES = st.sampled_from(["a", "b", ".a", "ab", "a.b", "-", "]", "[", "aab", "A", "1", "a b", "..a", "\\"])
PATHS = st.lists(NAMES, min_size=1, max_size=4).map("/".join)


def regex(glob: str, *, dots: bool = True, below: bool = True) -> re.Pattern[str]:
    return re.compile(translated(glob, dots=dots, below=below), re.DOTALL)
