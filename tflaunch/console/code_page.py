"""The files that are shipped, and those that stay on this machine."""

from __future__ import annotations

from tflaunch.code.bundle import Bundle
from tflaunch.code.what_is_shipped import summary
from tflaunch.console.safe_text import Text
from tflaunch.text.numbers import amount

_NAME_COLUMNS = 40


def files_lines(bundle: Bundle) -> list[Text]:
    """Each file that is shipped, and each that is not, and why."""
    rows = [_size_and_name(entry) for entry in bundle.entries]
    left = [(each.path, "a secret: " * (each.kind == "secret") + each.why) for each in bundle.left]
    width = max((len(size) for size, _ in rows), default=0)
    column = min(max((len(path) for path, _ in left), default=0), _NAME_COLUMNS)
    lines = [Text(f"to ship: {summary(bundle)}", "bold")]
    lines += [Text(f"  {size:>{width}}  {name}") for size, name in rows]
    if left:
        lines.append(Text("left out:", "bold"))
        lines += [Text.assemble(f"  {path:<{column}}  ", (why, "dim")) for path, why in left]
    return lines


def _size_and_name(entry: tuple[str | int, ...]) -> tuple[str, str]:
    path, kind, *more = entry
    if kind == "d":
        return "", f"{path}/"
    return ("link", f"{path} -> {more[0]}") if kind == "l" else (amount(int(more[1])), str(path))
