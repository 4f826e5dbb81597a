"""The configuration, as `tflaunch config` shows it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tflaunch.console.safe_text import Text, paragraph
from tflaunch.console.text_table import Column, Table, cut
from tflaunch.inputs.config import value_text

if TYPE_CHECKING:
    from tflaunch.console.pen import Sheet
    from tflaunch.inputs.config import Config, Setting


def config_lines(config: Config, paths: Sequence[Path], sheet: Sheet) -> list[Text]:
    """Each value that counts with its place, then those that another file overrides, then the files."""
    rows = config.settings()
    lines: list[Text] = []
    if rows:
        columns = [
            Column("key", [Text(each.name) for each in rows]),
            Column("value", [Text(value_text(each)) for each in rows], shrink=1, least=16),
            Column("from", [Text(each.place, "dim") for each in rows]),
        ]
        more = sheet.marks.more
        wide = Table(columns, sheet.columns, more, gap="   ")
        if sheet.columns is None or wide.width <= sheet.columns:
            lines = wide.lines()
        else:  # two lines for each, so that no path is broken
            for each in rows:
                line = Text.assemble((each.name, "bold"), f"  {value_text(each)}")
                lines += [cut(line, sheet.columns, more), Text(f"    {each.place}", "dim")]
    for each in config.overridden():
        winner = next(row for row in rows if (row.table, row.key) == (each.table, each.key))
        lines.append(
            paragraph(f"{each.place}: {each.name} {value_text(each)}: {winner.place} wins", style="dim")
        )
    there = {str(file.path) for file in config.files}
    lines += [
        paragraph(f"{path}: there is no such file", style="dim") for path in paths if str(path) not in there
    ]
    return lines


def config_data(config: Config, paths: Sequence[Path]) -> dict[str, Any]:
    """The same for programs."""

    def data(setting: Setting) -> dict[str, Any]:
        return {
            "key": setting.name,
            "value": setting.written,
            "file": setting.file,
            "line": setting.line,
        }

    there = {str(file.path) for file in config.files}
    return {
        "files": [{"path": str(path), "there": str(path) in there} for path in paths],
        "settings": [data(each) for each in config.settings()],
        "overridden": [data(each) for each in config.overridden()],
    }
