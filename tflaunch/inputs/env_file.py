"""Files of variables for the tasks, such as `.env`: lines of NAME=VALUE, as python-dotenv reads them."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterable
from pathlib import Path

from tflaunch.inputs.documents import read_file
from tflaunch.inputs.missing_files import no_such_file
from tflaunch.inputs.variables import DECIDED
from tflaunch.protocol.errors import EnvFileError, Problem


def read(paths: Iterable[Path]) -> dict[str, str]:
    """The variables in these files; a later file wins.  Raises EnvFileError with every problem.

    Names and values are those that python-dotenv finds, `${NAME}` included; a name without `=VALUE` stands for the
    value that it has here, as with --env.
    """
    found: dict[str, str] = {}
    problems: list[Problem] = []
    for path in paths:
        _read(path, found, problems)
    if problems:
        raise EnvFileError(problems, "A line is NAME=VALUE; quotes, comments and `export` are as in a shell.")
    return found


def _read(path: Path, found: dict[str, str], problems: list[Problem]) -> None:
    from dotenv import dotenv_values
    from dotenv.parser import parse_stream

    def refuse(line: int, message: str) -> None:
        problems.append(Problem(str(path), line, 1 if line else 0, message))

    try:
        text = read_file(path, str(path), EnvFileError)
    except FileNotFoundError:
        raise no_such_file("--env-file", path) from None
    except OSError as error:
        refuse(0, f"cannot be read: {error.strerror}")
        return
    values = dotenv_values(stream=io.StringIO(text))
    for binding in parse_stream(io.StringIO(text)):
        line = binding.original.line + _blank_lines(binding.original.string)
        name = binding.key
        if binding.error:
            refuse(line, "this is not NAME=VALUE")  # the line itself is not shown: it may be a secret
        elif name is None:
            continue
        elif not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            refuse(
                line,
                "what is before `=` is not the name of a variable: letters, digits and '_', not a digit first",
            )
        elif name in DECIDED:
            refuse(line, f"{name} is what tflaunch sets for every task. {DECIDED[name]}")
        elif binding.value is None and name not in os.environ:
            refuse(line, f"{name} has no value, and is not set here; write {name}=VALUE")
        else:
            found[name] = os.environ[name] if binding.value is None else values[name] or ""


def _blank_lines(statement: str) -> int:
    """How many empty lines come before the first word."""
    return statement[: len(statement) - len(statement.lstrip())].count("\n")
