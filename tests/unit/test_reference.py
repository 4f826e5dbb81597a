"""The reference of the documentation has all that the code has."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import tflaunch
from tests.support.launcher import TFLAUNCH
from tflaunch.cli import VERBS
from tflaunch.documents.json_documents import DOCUMENTS
from tflaunch.documents.json_events import EVENTS, SWEEP_EVENTS
from tflaunch.documents.json_objects import declared, event_fields
from tflaunch.documents.json_things import THINGS
from tflaunch.protocol import errors

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("verb", VERBS)
def test_every_option_that_the_help_shows_is_there(reference: Path, verb: str) -> None:
    done = subprocess.run(
        [*TFLAUNCH, verb, "--help"],
        env={"COLUMNS": "300", "TERM": "dumb", "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    # What explains an option is indented further than its name.
    first = set(re.findall(r"^ {2,6}(?:-\w, )?(--[a-z][a-z-]+)", done.stdout, re.M))
    assert "--help" in first
    page = (reference / f"{verb}.md").read_text()
    described = set(re.findall(r"--[a-z][a-z-]+", "\n".join(re.findall(r"^:::\{option\} (.*)", page, re.M))))
    assert first <= described <= set(re.findall(r"--[a-z][a-z-]+", done.stdout))


def test_every_exit_code_is_there(reference: Path) -> None:
    codes = {str(value) for name, value in vars(errors).items() if name.startswith("EXIT_")}
    assert codes <= set(re.findall(r"^\| `(\d+)`", (reference / "exit-codes.md").read_text(), re.M))


@pytest.mark.parametrize(
    ("document", "page"),
    [("hosts", "hostfile-keys.md"), ("job", "job-file-keys.md"), ("config", "config-keys.md")],
)
def test_every_key_is_there(reference: Path, document: str, page: str) -> None:
    done = subprocess.run([*TFLAUNCH, "schema", document], capture_output=True, text=True, check=True)

    def keys(schema: object) -> set[str]:
        if isinstance(schema, list):
            return set().union(*map(keys, schema))
        if not isinstance(schema, dict):
            return set()
        return set(schema.get("properties", ())).union(*map(keys, schema.values()))

    found = re.findall(
        r"^(?::::\{option\} (\w+)|\| `(\w+)` \|.*|### \[(\w+)\])$", (reference / page).read_text(), re.M
    )
    described = {"".join(names) for names in found}
    roles = {"ps", "worker", "chief", "master", "evaluator"} if document == "job" else set()
    assert described == keys(json.loads(done.stdout)) - roles


def test_every_event_and_field_is_there(reference: Path) -> None:
    text = (reference / "events.md").read_text()
    for name, event in {**EVENTS, **SWEEP_EVENTS}.items():
        assert re.search(rf"^### {name}( \(sweep\))?$", text, re.M)
        assert all(f"| `{field}` |" in text for field in event_fields(event).fields)


def test_every_document_and_its_fields_are_there(reference: Path) -> None:
    page = (reference / "documents.md").read_text()
    sections = dict(re.findall(r"^###? (.+?)\n(.*?)(?=^##|\Z)", page, re.MULTILINE | re.DOTALL))
    for name, thing in {**DOCUMENTS, **THINGS}.items():
        assert (
            set(re.findall(r"^\| `(\w+)` \|", sections[name], re.MULTILINE)) == declared(thing).fields.keys()
        )


def letters(text: str) -> str:
    """The letters and digits of a text: whatever the markup around them."""
    return re.sub(r"[^a-z0-9]+", "", text.lower())


def test_the_man_page_that_is_installed_says_what_the_code_says(reference: Path) -> None:
    page = (ROOT / "docs/tflaunch.1").read_text(encoding="utf-8")
    headings = (".SH ", ".SS ", ".B ")
    lines = [line.partition(" ")[2] if line.startswith(headings) else line for line in page.splitlines()]
    shown = "\n".join(line for line in lines if not line.startswith((".", "'")))
    shown = re.sub(r"\\f[A-Z]|\\\([a-z]{2}|\\%", "", shown)  # fonts, and characters by name
    made = (reference / "tflaunch.1.md").read_text(encoding="utf-8")
    assert letters(made[made.index("## SYNOPSIS") :]) in letters(shown), (
        "`scripts/docs man` writes docs/tflaunch.1 anew"
    )
    assert f'"{tflaunch.__version__}"' in page


def test_the_keywords_of_the_api_are_those_of_the_options() -> None:
    program = "from generator import keywords; print(keywords.module(), end='')"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT / "docs", capture_output=True, text=True, check=True
    )
    assert done.stdout == (ROOT / "tflaunch/api/keywords.py").read_text("utf-8"), (
        "`scripts/docs man` writes tflaunch/api/keywords.py anew"
    )


def test_the_man_page_has_every_verb(reference: Path) -> None:
    text = (reference / "tflaunch.1.md").read_text()
    assert sorted(re.findall(r"^### tflaunch (\w+)", text, re.M)) == sorted(VERBS)
