"""Values over time as blocks, the newest at the right: ▁▃▅█."""

from __future__ import annotations

from collections.abc import Sequence

LEAST_CORES = 0.1  # that fill a graph of processor time: the noise of a task that rests is none of its own
LEAST_BYTES_S = 1000.0  # likewise, of bytes a second


def graph(values: Sequence[float | None], blocks: str, height: int = 1) -> list[str]:
    """Return the lines of a graph, the topmost first.

    values: shares of the whole, 0 to 1, one to a column; None leaves its column empty.
    blocks: the signs for a cell, from nearly empty to full.
    """
    steps = len(blocks)
    tops = [
        None if value is None else round(min(1.0, max(0.0, value)) * (steps * height - 1)) for value in values
    ]
    return ["".join(_cell(top, row * steps, blocks) for top in tops) for row in reversed(range(height))]


def _cell(top: int | None, bottom: int, blocks: str) -> str:
    if top is None or top < bottom:
        return " "
    return blocks[min(len(blocks) - 1, top - bottom)]


def sparkline(
    values: Sequence[float], width: int, blocks: str, within: tuple[float, float] | None = None
) -> str:
    """Return a graph of at most `width` columns, in which the lowest value is empty and the highest full.

    within: the lowest value is this at most, and the highest that at least.
    Where there are more values than columns, each column stands for the last of its share of them.
    """
    if width <= 0 or not values:
        return ""
    count = min(width, len(values))
    shown = [values[(number + 1) * len(values) // count - 1] for number in range(count)]
    low, high = min([*shown, *(within or ())[:1]]), max([*shown, *(within or ())[1:]])
    if low == high:
        return graph([0.5] * count, blocks)[0]
    # Halved, for the difference of two finite numbers may be infinite.
    span = high / 2 - low / 2
    return graph([(value / 2 - low / 2) / span if span else 0.0 for value in shown], blocks)[0]
