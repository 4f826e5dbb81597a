"""Output that a page shows without a command: each sentence of it is made for real here, or says where it is."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs import plays, shapes
from tests.docs.pages import documents, outputs
from tests.docs.world import Reader, rename
from tests.support.bed import Bed

# How a line of tflaunch's own begins, or one of a task.
OURS = re.compile(r"\s*(?:[!✓✗→·▶] |\w+/\d+\s+│ |run [\w-]+-\w{6}$|gpu\d+  \S)")


def _sentences() -> Iterator[tuple[str, str]]:
    """(where, sentence) of each block of output: a line that is further in belongs to the one before."""
    for page in documents():
        for block in outputs(page):
            if not OURS.match(block.lines[0]):
                continue  # a drawing, a table, a file
            found: list[str] = []
            first = len(block.lines[0]) - len(block.lines[0].lstrip())
            for line in block.lines:
                deeper = len(line) - len(line.lstrip()) > first
                if found and deeper:
                    found[-1] += "\n" + line
                elif line.strip() not in ("", "…", "..."):
                    found.append(line)
            yield from ((block.where, sentence) for sentence in found)


SENTENCES = list(_sentences())


@pytest.mark.parametrize(("where", "sentence"), SENTENCES)
def test_each_sentence_is_made_somewhere(where: str, sentence: str) -> None:
    known = [*plays.SHOWN, *(pattern for pattern, _ in plays.SHOWN_ELSEWHERE)]
    assert any(re.match(pattern, sentence.strip()) for pattern in known), (
        f"{where}: say in tests/docs/plays.py (SHOWN, SHOWN_ELSEWHERE) what makes this:\n{sentence}"
    )


def test_the_pages_show_output() -> None:
    """Were it not found, nothing here could fail."""
    assert len(SENTENCES) > 4


def test_what_the_pages_show_is_said(bed: Bed, tmp_path: Path) -> None:
    hosts = bed.up(3)
    for number, host in enumerate(hosts, 1):
        rename(host, f"gpu{number:02}")
    bed.name_all()
    reader = Reader(tmp_path / "reader", bed)
    (reader.proj / "three.yaml").write_text(
        "defaults: {ports: 22001-22009, gpus: 0}\nhosts: ['gpu[01-03]']\n"
    )
    run = "tflaunch run three.yaml trainer.py --ps 1 --workers 2"
    said = ""

    # Files that stay here, and one that the program misses.
    (reader.proj / ".gitignore").write_text("data/\n*.tmp\n")
    for name in (".env", ".netrc"):
        (reader.proj / name).write_text("TOKEN=secret\n")
    (reader.proj / "data").mkdir()
    for name in ("data/train.csv", "a.tmp", "b.tmp"):
        (reader.proj / name).write_text("1,2\n")
    (reader.proj / "reads.py").write_text(
        'print("epoch 1", flush=True)\nrows = open("data/train.csv").read()\n'
    )
    failed = reader.type("tflaunch run three.yaml reads.py --ps 0 --workers 1")
    assert failed.code == 1, failed.all
    said += failed.all

    # A firewall between two hosts.
    bed.block(hosts[1], hosts[2], 22001)
    blocked = reader.type(run)
    assert blocked.code == 70, blocked.all
    said += blocked.all
    bed.heal()

    # A host that does not answer.
    bed.block(bed.launcher, hosts[2], 22)
    said += reader.must(run).all

    for where, sentence in SENTENCES:
        if any(re.match(pattern, sentence.strip()) for pattern in plays.SHOWN):
            assert not shapes.missing(sentence.split("\n"), said), (
                f"{where}: nothing like\n{sentence}\nin\n{said}"
            )
