"""The classes of what `--json` prints: as 0.2.0 had them, as a type checker sees them, as their JSON Schemas say."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.support.versions import unpacked
from tflaunch.documents.json_documents import DOCUMENTS
from tflaunch.documents.json_events import EVENTS, SWEEP_EVENTS
from tflaunch.documents.json_objects import declared, event_fields
from tflaunch.documents.json_things import THINGS

ROOT = Path(__file__).resolve().parents[3]
OF_OLD = """\
import json
from tflaunch.console.json_documents import DOCUMENTS
from tflaunch.console.json_events import EVENTS, SWEEP_EVENTS
from tflaunch.console.json_things import THINGS
tables = DOCUMENTS, THINGS, EVENTS, SWEEP_EVENTS
print(json.dumps([{n: [{**t.fields}, [*t.sometimes]] for n, t in table.items()} for table in tables]))
"""
# Fields whose words are not those of 0.2.0.
REWORDED = {
    ("stacked process", "why_none"),
    ("gpu", "memory_free_bytes"),
    ("instance", "memory_free_bytes"),
    ("waiting run", "planning"),
    ("waiting run", "pid"),
    ("report", "first_failure"),
    ("detached", "host"),
    ("stopped", "hosts"),
    ("plan", "tasks"),
    ("code", "digest"),
}


def test_every_field_of_0_2_0_is_there_and_means_the_same(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", OF_OLD],
        env={"PYTHONPATH": str(unpacked(tmp_path))},
        cwd=tmp_path,
        capture_output=True,
        check=True,
    )
    for was, table in zip(json.loads(done.stdout), (DOCUMENTS, THINGS, EVENTS, SWEEP_EVENTS), strict=True):
        assert was.keys() <= table.keys()
        for name, (fields, sometimes) in was.items():
            now = (event_fields if table in (EVENTS, SWEEP_EVENTS) else declared)(table[name])
            assert fields.keys() <= now.fields.keys(), name
            assert set(sometimes) == now.sometimes & fields.keys(), name
            other = {(name, field) for field, text in fields.items() if now.fields.get(field) != text}
            assert other <= REWORDED


PROGRAM = """\
from tflaunch import api
def line(event: api.Event) -> str:
    if event["event"] == "log":
        reveal_type(event["line"])
        return event["lien"]
    if event["event"] == "exited":
        reveal_type(event["code"])
    return event["host"]
with api.attach("r") as run:
    for each in run:
        reveal_type(each["time"])
"""


def test_a_type_checker_sees_the_fields_of_events(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    words = ["mypy", "--strict", "--follow-imports=silent", "--config-file=", "--no-pretty", str(program)]
    done = subprocess.run(
        [sys.executable, "-m", *words], cwd=ROOT, capture_output=True, text=True, check=False
    )
    told = [line.partition("program.py:")[2] for line in done.stdout.splitlines()]
    assert '4: note: Revealed type is "str"' in [line.replace("builtins.", "") for line in told]
    assert any(line.startswith("5: error:") and '"lien"' in line for line in told)
    assert '7: note: Revealed type is "int | None"' in [line.replace("builtins.", "") for line in told]
    assert any(line.startswith("8: error:") and '"host"' in line for line in told)  # not every event has it
    assert '11: note: Revealed type is "float"' in [line.replace("builtins.", "") for line in told]


def test_the_schemas_are_those_of_the_classes() -> None:
    program = "import json; from generator import schemas; print(json.dumps(schemas.texts()))"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT / "docs", capture_output=True, check=True)
    folder = ROOT / "tflaunch/documents/schemas"
    kept = {path.name: path.read_text("utf-8") for path in folder.glob("*.json")}
    assert json.loads(done.stdout) == kept, "`scripts/docs man` writes tflaunch/documents/schemas anew"
