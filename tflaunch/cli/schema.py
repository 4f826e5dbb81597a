"""`tflaunch schema`: prints the JSON Schema of a hostfile or of a job file."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import typer


class Document(str, Enum):
    """The documents that have a schema."""

    hosts = "hosts"
    job = "job"


def schema(
    of: Annotated[
        Document, typer.Argument(metavar="hosts|job", help="The schema of a hostfile, or of a job file.")
    ] = Document.hosts,
) -> None:
    """Print the JSON Schema of a hostfile, or of a job file, for editors that complete and check YAML."""
    import json

    from tflaunch.console.screen import reader_may_leave
    from tflaunch.console.writer import write_result
    from tflaunch.inputs import hostfile_model, job_model

    schema = (job_model if of is Document.job else hostfile_model).json_schema()
    with reader_may_leave():
        write_result(json.dumps(schema, indent=2) + "\n")
