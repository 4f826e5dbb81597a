"""`tflaunch schema`."""

from __future__ import annotations


def schema() -> None:
    """Print the JSON Schema of a hostfile, for editors that complete and check YAML."""
    import json

    from tflaunch.hosts import json_schema
    from tflaunch.runs_view import reader_may_leave
    from tflaunch.writer import write_result

    with reader_may_leave():
        write_result(json.dumps(json_schema(), indent=2) + "\n")
