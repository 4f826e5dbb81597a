"""`tflaunch schema`: prints the JSON Schema of a hostfile, a job file or a configuration."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import typer


class SchemaDocument(str, Enum):
    """The documents that have a schema."""

    hosts = "hosts"
    job = "job"
    config = "config"


def schema(
    of: Annotated[
        SchemaDocument,
        typer.Argument(
            metavar="hosts|job|config",
            help="The schema of a hostfile, a job file, or a configuration file.",
        ),
    ] = SchemaDocument.hosts,
) -> None:
    """Print a JSON Schema: of a hostfile, a job file or a configuration, for editors that complete and check them."""
    import json

    from tflaunch.console.screen import reader_may_leave
    from tflaunch.documents.writer import write_result
    from tflaunch.inputs import config_model, hostfile_model, job_model

    models = {
        SchemaDocument.hosts: hostfile_model,
        SchemaDocument.job: job_model,
        SchemaDocument.config: config_model,
    }
    schema = models[of].json_schema()
    with reader_may_leave():
        write_result(json.dumps(schema, indent=2) + "\n")
