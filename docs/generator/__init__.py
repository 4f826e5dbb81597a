"""Writes the pages of the reference from the code, so that they cannot fall behind it.

    verbs.py        the page of each verb, and the list of them: from the command line's own parser
    exit_codes.py   from tflaunch.protocol.errors
    file_keys.py    the keys of the hostfile, the job file and the configuration: from their JSON Schemas
    events.py       what `--json` prints: from tflaunch.documents.json_events
    documents.py    likewise, where it is one document: from tflaunch.documents.json_documents
    variables.py    what a task finds in its environment: from tflaunch.inputs.task_variables
    python_api.py   tflaunch.api: from its docstrings and type hints
    repository.py   README files and the changelog, as pages of the site
    manual.py       the man page: from the verbs and the exit codes
    schemas.py      the JSON Schemas of what `--json` prints: tflaunch/documents/schemas
    keywords.py     the module tflaunch.api.keywords
    markdown.py     text as Markdown

`docs/conf.py` calls `write` before Sphinx reads anything.  What it writes is ignored by git.
"""

from __future__ import annotations

from pathlib import Path

from generator import (
    documents,
    events,
    exit_codes,
    file_keys,
    manual,
    python_api,
    repository,
    variables,
    verbs,
)


def write(folder: Path) -> None:
    """Write every page of the reference into `folder`, and remove pages that are no longer made."""
    pages = {
        **verbs.pages(),
        "exit-codes.md": exit_codes.page(),
        **file_keys.pages(),
        **repository.pages(),
        "events.md": events.page(),
        "documents.md": documents.page(),
        "variables.md": variables.page(),
        "python-api.md": python_api.page(),
        "tflaunch.1.md": manual.page(),
    }
    folder.mkdir(exist_ok=True)
    for old in folder.glob("*.md"):
        if old.name not in pages:
            old.unlink()
    for name, text in pages.items():
        path = folder / name
        # Sphinx reads again what was written again.
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
