"""Why tflaunch gives up: the hosts that failed, the problems of a file, any other error."""

from __future__ import annotations

import re
from collections.abc import Mapping

from tflaunch.console.pen import Marks, Sheet, hint, whole
from tflaunch.console.safe_text import Text, paragraph, stacked, wrapped_words
from tflaunch.console.table import Column, Table
from tflaunch.hosts import fold
from tflaunch.protocol.errors import (
    ConfigError,
    ConnectError,
    ConnectErrors,
    DialError,
    DocumentError,
    JobFileError,
    LaunchError,
    TflaunchError,
)
from tflaunch.ssh.refused_keys import Together, some_lines, together
from tflaunch.text.numbers import agreeing, counted

PROBLEMS_SHOWN = 20  # of a hostfile; a file that is no hostfile has a problem in every line
_HOSTS_COLUMNS, _LEAST_COLUMNS = 28, 8
_BETWEEN_HOSTS = re.compile(r",(?![^\[\]]*\])")  # not the comma in gpu[1,3]


def headline(errors: ConnectErrors | LaunchError) -> str:
    """Return how many hosts failed at what, and whether anything is left on them."""
    if isinstance(errors, ConnectErrors):
        return "the only host could not be used" if errors.total == 1 else errors.message
    count = len(errors.failures)
    if isinstance(errors, DialError):
        hosts = "1 host does not reach" if count == 1 else f"{count} hosts do not reach"
        hosts += f" every peer that {agreeing(count, 'its', 'their')} tasks will call"
        return hosts if errors.unconfirmed else f"{hosts}; nothing was started"
    hosts = "1 host could not start its tasks" if count == 1 else f"{count} hosts could not start their tasks"
    return hosts if errors.unconfirmed else f"{hosts}; nothing is left running"


def unconfirmed_hosts(errors: ConnectErrors | LaunchError) -> dict[str, str]:
    """Return the hosts on which something may still run, each with the reason why the check failed."""
    return errors.unconfirmed if isinstance(errors, LaunchError) else {}


def unreachable_data(failures: Mapping[str, ConnectError]) -> dict[str, dict[str, str]]:
    """Return why each of these hosts did not answer, as JSON has it."""
    return {host: each.data_for(host) for host, each in failures.items()}


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
