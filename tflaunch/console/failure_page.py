"""Why tflaunch gives up: the hosts that failed, the problems of a file, any other error."""

from __future__ import annotations

import re
from collections.abc import Mapping

from tflaunch.console.pen import Marks, Sheet, hint, whole
from tflaunch.console.safe_text import Text, paragraph, stacked, wrapped_words
from tflaunch.console.text_table import Column, Table
from tflaunch.documents.failed_hosts import headline, unconfirmed_hosts
from tflaunch.hosts import fold
from tflaunch.protocol.errors import (
    ConfigError,
    ConnectErrors,
    DocumentError,
    JobFileError,
    LaunchError,
    TflaunchError,
)
from tflaunch.ssh.refused_keys import Together, some_lines, together
from tflaunch.text.numbers import counted

PROBLEMS_SHOWN = 20  # of a hostfile; a file that is no hostfile has a problem in every line
_HOSTS_COLUMNS, _LEAST_COLUMNS = 28, 8
_BETWEEN_HOSTS = re.compile(r",(?![^\[\]]*\])")  # not the comma in gpu[1,3]


def failures_lines(errors: ConnectErrors | LaunchError, sheet: Sheet) -> list[Text]:
    """Every host that failed, with its cause and the next step to take."""
    marks, rows = sheet.marks, together(errors.failures)
    causes = []
    for row in rows:
        step = (f"\n{marks.next} {row.hint}", "cyan") if row.hint else ""
        differing = "".join(f"\n{line}" for line in some_lines(row.lines))
        causes.append(paragraph(row.cause, differing, step, indent=""))  # the column is indentation enough
    columns = [
        Column(
            "",
            [_hosts_cell(row) for row in rows],
            wraps=True,
            shrink=1,
            least=_LEAST_COLUMNS,
            most=_HOSTS_COLUMNS,
        ),
        Column("", causes, wraps=True, shrink=1, least=_LEAST_COLUMNS),
    ]
    lines = [
        paragraph((f"{marks.bad} ", "bold red"), (headline(errors), "bold")),
        *Table(columns, sheet.columns, marks.more, margin="  ").lines(headings=False),
        *(whole(f"  {marks.next} {command}", "cyan") for row in rows for command in row.commands),
        *unchecked_lines(unconfirmed_hosts(errors), marks),
    ]
    return lines + ([hint(errors.hint, marks)] if errors.hint else [])


def _hosts_cell(row: Together) -> Text:
    """The hosts of a row, in lines that end between two hosts, not within a name."""
    hosts = _BETWEEN_HOSTS.split(fold(row.hosts))
    lines = wrapped_words([*(f"{host}," for host in hosts[:-1]), hosts[-1]], _HOSTS_COLUMNS, "")
    return stacked(Text(line, "bold") for line in lines)


def unchecked_lines(hosts: Mapping[str, str], marks: Marks) -> list[Text]:
    """The hosts on which something may still run, grouped by reason."""
    reasons: dict[str, list[str]] = {}
    for host, reason in hosts.items():
        reasons.setdefault(reason, []).append(host)
    return [
        paragraph(
            (f"{marks.warn} ", "yellow"), f"{fold(names)}: could not check that nothing is left: {reason}"
        )
        for reason, names in reasons.items()
    ]


def error_lines(err: TflaunchError, marks: Marks) -> list[Text]:
    """An error that is not about single hosts."""
    bad = (f"{marks.bad} ", "bold red")
    if isinstance(err, DocumentError):
        kinds: dict[type[DocumentError], str] = {JobFileError: "job file", ConfigError: "configuration"}
        document = kinds.get(type(err), "hosts")
        problems = counted(len(err.problems), "problem")
        lines = [Text.assemble(bad, (f"{problems} in the {document}; nothing was contacted", "bold"))]
        for problem in err.problems[:PROBLEMS_SHOWN]:
            where = str(problem).removesuffix(problem.message)
            lines.append(paragraph("  ", (where, "bold"), problem.message))
        if len(err.problems) > PROBLEMS_SHOWN:
            lines.append(Text(f"  and {len(err.problems) - PROBLEMS_SHOWN} more", "dim"))
    else:
        lines = [paragraph(bad, err.message)]
    return lines + ([hint(err.hint, marks)] if err.hint else [])
