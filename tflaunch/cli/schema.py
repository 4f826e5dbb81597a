"""`tflaunch schema`."""

from __future__ import annotations


def schema() -> None:
    """Print the JSON Schema of a hostfile, for editors that complete and check YAML."""
    import json

    from tflaunch.hosts import json_schema

    print(json.dumps(json_schema(), indent=2))
