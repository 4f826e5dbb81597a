"""Values over time as a line of blocks: ▇▅▃▂▁."""

from __future__ import annotations

from collections.abc import Sequence


def sparkline(values: Sequence[float], width: int, blocks: str) -> str:
    """Return at most `width` blocks, the lowest value as the first of `blocks` and the highest as the last.

    Where there are more values than that, each block stands for the last of its share of them.
    """
    if width <= 0 or not values:
        return ""
    count = min(width, len(values))
    shown = [values[(number + 1) * len(values) // count - 1] for number in range(count)]
    low, high = min(shown), max(shown)
    if low == high:
        return blocks[len(blocks) // 2] * count
    # Halved, for the difference of two finite numbers may be infinite.
    span = high / 2 - low / 2
    places = [(value / 2 - low / 2) / span * (len(blocks) - 1) if span else 0.0 for value in shown]
    return "".join(blocks[round(place)] for place in places)
