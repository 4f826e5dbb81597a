"""What of a host `tflaunch clean` may remove: the agent as it is shipped, over pipes."""

from __future__ import annotations

import json
import os
import subprocess
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.agent_over_pipes import Host, interpreters, running, task
from tests.support.ages import DAY_S, make_old
from tflaunch.protocol import removal, wire
from tflaunch.protocol.code_manifest import digest_of


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    """A host with the oldest Python that can be had."""
    host = Host(tmp_path, interpreters()[0])
    yield host
    host.close()


def old_run(host: Host, name: str, code: str | None = None, **agent: object) -> Path:
    """The directory of a run that ended long ago."""
    directory = host.parent / name / "h1"
    host.run_dir.mkdir(exist_ok=True)
    host.parent.mkdir(mode=0o700, exist_ok=True)
    (directory / "logs").mkdir(parents=True)
    (directory / "logs" / "worker-0.log").write_bytes(b"x" * 100_000)
    about = {"pid": 1, "start": 1, "guard": 1, "guard_start": 1, "tasks": ["worker/0"], "over": True, **agent}
    (directory / "agent.json").write_text(json.dumps(about))
    (directory / "plan.json").write_text(json.dumps({"tasks": [], "code": code}))
    make_old(host.parent / name)
    return host.parent / name


def test_the_agent_knows_what_must_stay(host: Host, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    (precious / "h1").mkdir(parents=True)
    (precious / "h1" / "agent.json").write_text("{}")
    old_run(host, "old-aaaaaa")
    old_run(host, "elsewhere-aaaaaa", over=False, machine=["another", "boot"])
    old_run(
        host, "rebooted-aaaaaa", over=False, pid=os.getpid(), start=1, machine=[os.uname().nodename, "before"]
    )
    (host.parent / "link-aaaaaa").symlink_to(precious)
    (host.parent / "file-aaaaaa").write_text("")
    (host.parent / "mine" / "data").mkdir(parents=True)
    (host.parent / "mine" / "data" / "file").write_text("")
    (host.parent / "empty-aaaaaa" / "h1" / "logs").mkdir(parents=True)
    running(host.start(), task("sleep", "600"))
    visitor = host.open("visit", run="", host="")
    told = visitor.ask("measure", answer="usage")
    keep = {entry["run"]: entry["keep"] for entry in told["runs"]}
    assert keep == {
        "old-aaaaaa": "",
        "elsewhere-aaaaaa": "it belongs to the machine another, which shares this disk",
        "rebooted-aaaaaa": "",
        "link-aaaaaa": f"{host.parent}/link-aaaaaa is a link or a file",
        "file-aaaaaa": f"{host.parent}/file-aaaaaa is a link or a file",
        "mine": f"{host.parent}/mine is no run directory: no agent.json in it",
        "empty-aaaaaa": "",
        host.run: "it is alive",
    }
    runs = list(keep)
    before = removal.Size(str(host.parent)).bytes
    dry = visitor.ask("clean", runs=runs, code_older_s=0, dry_run=True, answer="cleaned")
    assert removal.Size(str(host.parent)).bytes == before
    done = visitor.ask("clean", runs=runs, code_older_s=0, dry_run=False, answer="cleaned")
    assert dry.fields == done.fields
    assert set(done["removed"]) == {"old-aaaaaa", "rebooted-aaaaaa", "empty-aaaaaa"}
    assert done["left"] == {run: why for run, why in keep.items() if why}
    assert before - removal.Size(str(host.parent)).bytes == sum(done["removed"].values())
    assert (precious / "h1" / "agent.json").exists()
    assert (host.parent / "mine" / "data" / "file").exists()
    assert (host.directory / "agent.json").exists()
    for name in ("code", "../precious", "", ".clean-x", "a/b"):
        visitor.send("clean", runs=[name], code_older_s=0, dry_run=False)
        failed = visitor.next()
        assert failed is not None
        assert failed.type == "failed"


def test_what_tells_that_a_whole_run_has_ended(host: Host) -> None:
    events = {
        "told-aaaaaa": [{"type": "swept"}, {"type": "outcome", "outcome": {}}],
        "stopped-aaaaaa": [{"type": "expired", "asked": True}, {"type": "swept"}],
        "lease-aaaaaa": [
            {"type": "expired", "asked": False},
            {"type": "swept"},
        ],  # others may have heard of it
        "silent-aaaaaa": [],
    }
    for name, lines in events.items():
        path = old_run(host, name) / "h1" / "events.jsonl"
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    old_run(host, "killed-aaaaaa", over=False)
    told = host.open("visit", run="", host="").ask("measure", answer="usage")
    assert sorted(entry["run"] for entry in told["runs"] if entry["ended"]) == [
        "stopped-aaaaaa",
        "told-aaaaaa",
    ]


def test_a_process_with_the_mark_is_enough(host: Host) -> None:
    old_run(host, "old-aaaaaa")
    stray = subprocess.Popen(["sleep", "600"], env={**os.environ, "TFLAUNCH_RUN": "old-aaaaaa"})
    visitor = host.open("visit", run="", host="")
    done = visitor.ask("clean", runs=["old-aaaaaa"], code_older_s=0, dry_run=False, answer="cleaned")
    assert (done["removed"], done["left"]) == ({}, {"old-aaaaaa": "it is alive"})
    stray.kill()
    stray.wait()
    again = visitor.ask("clean", runs=["old-aaaaaa"], code_older_s=0, dry_run=False, answer="cleaned")
    assert set(again["removed"]) == {"old-aaaaaa"}


def test_shipped_code_goes_with_the_last_run_of_it(host: Host) -> None:
    store = host.parent / "code"
    host.run_dir.mkdir()
    host.parent.mkdir(mode=0o700)
    (store / "files").mkdir(parents=True)
    shared = b"all have this"
    digests = {}
    for name in ("one", "two", "unused", "fresh"):
        contents = [shared, name.encode() * 1000]
        entries = [
            [f"{number}.py", "f", digest_of(content), len(content), zlib.crc32(content)]
            for number, content in enumerate(contents)
        ]
        text = wire.dumps(entries).encode()
        digests[name] = digest_of(text)
        for content in contents:
            (store / "files" / digest_of(content)).write_bytes(content)
        (store / f"{digests[name]}.tree").write_bytes(zlib.compress(text))
        if name != "fresh":
            make_old(store / f"{digests[name]}.tree", 2)
    (store / "older.tar.gz").write_bytes(b"x" * 10_000)  # as it was shipped before
    (store / "files" / "half").write_bytes(b"what came of code that never came whole")
    make_old(store / "older.tar.gz", 2)
    make_old(store / "files")
    (store / "one.tree.0123.part").write_bytes(b"x" * 10_000)
    make_old(store / "one.tree.0123.part", 0.1)
    notes = {"checked.json", "checked.json.7.new"}  # of what has been checked
    for name in notes:
        (store / name).write_text("{}")
        make_old(store / name, 2)
    (store / "link.tree").symlink_to(store / "one.tree.0123.part")
    old_run(host, "first-aaaaaa", code=digests["one"])
    old_run(host, "second-aaaaaa", code=digests["one"])
    old_run(host, "third-aaaaaa", code=digests["two"])
    visitor = host.open("visit", run="", host="")
    names = {digest_of(name.encode() * 1000): name for name in digests} | {digest_of(shared): "shared"}

    def clean(*runs: str, older_s: float | None) -> tuple[int, set[str], set[str]]:
        dry = visitor.ask("clean", runs=runs, code_older_s=older_s, dry_run=True, answer="cleaned")
        done = visitor.ask("clean", runs=runs, code_older_s=older_s, dry_run=False, answer="cleaned")
        assert dry["code"] == done["code"]
        kinds = {digest: name for name, digest in digests.items()}
        left = {path.name.removesuffix(".tree") for path in store.iterdir()} - {"files", "link"}
        contents = {names.get(path.name, path.name) for path in (store / "files").iterdir()}
        return done["code"]["files"], {kinds.get(name, name) for name in left}, contents

    part = "one.tree.0123.part"
    whole = {*digests, *notes, part, "older.tar.gz"}
    all_of_it = {*digests, "shared", "half"}
    assert clean("first-aaaaaa", older_s=None) == (0, whole, all_of_it)
    assert clean("third-aaaaaa", older_s=None) == (2, whole - {"two"}, all_of_it - {"two"})
    all_of_it -= {"two", "half"}
    assert clean(older_s=DAY_S * 3) == (2, whole - {"two", part}, all_of_it)
    assert clean(older_s=DAY_S) == (5, {"one", "fresh"}, all_of_it - {"unused"})
    assert clean("second-aaaaaa", older_s=0.0) == (2, {"fresh"}, {"fresh", "shared"})
    # Whoever asks whether code is here is about to use it, and so is who asks what of it is lacking.
    make_old(store / f"{digests['fresh']}.tree")
    assert host.start().ask("code", digest=digests["fresh"], answer="code")["have"] is True
    assert clean(older_s=0.0) == (0, {"fresh"}, {"fresh", "shared"})
    text = wire.dumps([["new.py", "f", digest_of(shared), len(shared), zlib.crc32(shared)]]).encode()
    make_old(store / f"{digests['fresh']}.tree")
    make_old(store / "files")
    host.run += "-again"
    new = digest_of(text)
    said = host.start().ask("code", zlib.compress(text), digest=new, answer="code")
    assert said["have"] is True
    assert clean(older_s=0.0) == (2, {new}, {"shared"})


def test_what_an_interrupted_clean_left_goes_with_the_next(host: Host) -> None:
    old_run(host, "old-aaaaaa")
    (host.parent / "old-aaaaaa").rename(host.parent / ".clean-old-aaaaaa-1234")
    visitor = host.open("visit", run="", host="")
    told = visitor.ask("measure", answer="usage")
    assert told["runs"] == []
    done = visitor.ask("clean", runs=[], code_older_s=0, dry_run=False, answer="cleaned")
    assert done["rest_bytes"] == told["rest_bytes"] >= 100_000
    assert list(host.parent.iterdir()) == []
