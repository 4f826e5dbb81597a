"""Which contents of the store are read again before they are copied, and that damage is found: real files."""

from __future__ import annotations

import errno
import json
import os
import re
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.code import blobs, grow
from tflaunch.agent.files import checked
from tflaunch.agent.files.code_store import REST_S, CodeStore
from tflaunch.code.bundle import Bundle, bundle
from tflaunch.protocol.code_manifest import SMALL_BYTES

FILES = 3
SIZE = SMALL_BYTES // 2


class Store:
    """A store with code in it, and what the agent does there is counted."""

    def __init__(self, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.parent = place / "parent"
        self.parent.mkdir()
        self.code = place / "code"
        grow(self.code, {f"pkg/{number}.txt": f"{number} " * (SIZE // 2) for number in range(FILES)})
        self.index = self.parent / "code" / checked.CHECKED
        self.read = 0  # bytes of contents
        self.opened = 0
        self._runs = 0
        readv, opens = os.readv, os.open

        def count_bytes(*arguments: Any) -> int:
            count = readv(*arguments)
            self.read += count
            return count

        def count_opens(*arguments: Any, **more: Any) -> int:
            self.opened += 1
            return opens(*arguments, **more)

        monkeypatch.setattr(os, "readv", count_bytes)
        monkeypatch.setattr(os, "open", count_opens)

    def ship(self) -> Bundle:
        """What has changed of the code comes into the store."""
        packed = bundle(self.code)
        store = CodeStore(str(self.parent), packed.digest)
        for message in blobs(packed, store.lacks(packed.manifest, last=True)):
            store.add(message.body, message["packed"], message["last"])
        return packed

    def copy(self, packed: Bundle) -> dict[str, Any]:
        """Copy it into another run; how many bytes were read for that, is in `read`."""
        self.read = self.opened = 0
        work = self.work()
        copied = CodeStore(str(self.parent), packed.digest).copy_to(str(work))
        if "damaged" not in copied:
            for path in (each for each in self.code.rglob("*") if each.is_file()):
                assert (work / path.relative_to(self.code)).read_bytes() == path.read_bytes()
        return copied

    def work(self) -> Path:
        """The directory of another run."""
        self._runs += 1
        work = self.parent / f"run-{self._runs}"
        work.mkdir()
        return work

    def content(self, packed: Bundle, name: str) -> Path:
        [digest] = [entry[2] for entry in packed.entries if entry[0] == name]
        return self.parent / "code/files" / str(digest)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """On a disk of this machine, with contents that came long ago."""
    monkeypatch.setattr(checked.os, "major", lambda _: 8)
    monkeypatch.setattr(checked, "SETTLED_NS", -3600 * 10**9)
    return Store(tmp_path, monkeypatch)


def flip(path: Path) -> None:
    """Change a byte in place."""
    with path.open("r+b") as file:
        file.seek(SIZE // 2)
        file.write(b"!")


def test_what_has_been_checked_is_not_read_again(store: Store) -> None:
    packed = store.ship()
    for read in (FILES * SIZE, 0, 0):
        files = store.copy(packed)["files"]
        assert len(files) == FILES
        assert store.read == read
    assert store.opened == 2 * FILES, "each content and its copy, once"


def test_of_changed_code_only_the_change_is_read(store: Store) -> None:
    store.copy(store.ship())
    (store.code / "pkg/1.txt").write_text("new")
    (store.code / "more.txt").write_text("x" * SMALL_BYTES)
    packed = store.ship()
    store.copy(packed)
    assert store.read == len("new") + SMALL_BYTES
    store.copy(packed)
    assert store.read == 0


def test_what_is_asked_for_after_a_pause_stays_young_and_is_read_again(store: Store) -> None:
    packed = store.ship()
    store.copy(packed)
    content = store.content(packed, "pkg/0.txt")
    an_hour_ago = content.stat().st_mtime - REST_S
    os.utime(content, (an_hour_ago, an_hour_ago))
    (store.code / "more.txt").write_text("x")
    store.copy(store.ship())
    assert content.stat().st_mtime > an_hour_ago + REST_S / 2
    assert store.read == SIZE + 1


def in_place(path: Path) -> None:
    before = path.stat()
    flip(path)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def as_another_file(path: Path) -> None:
    data, before = bytearray(path.read_bytes()), path.stat()
    data[0] ^= 1
    path.unlink()
    path.write_bytes(data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def cut(path: Path) -> None:
    os.truncate(path, SIZE - 1)


def longer(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"!")


@pytest.mark.parametrize("damage", [in_place, as_another_file, cut, longer, Path.unlink])
def test_a_content_that_has_changed_since_is_found(store: Store, damage: Callable[[Path], None]) -> None:
    packed = store.ship()
    store.copy(packed)
    content = store.content(packed, "pkg/1.txt")
    damage(content)
    for _ in range(2):
        assert [*store.copy(packed)["damaged"]] == [content.name]
    content.unlink(missing_ok=True)
    store.copy(store.ship())
    assert store.read == SIZE, "it came again"


def rot(store: Store, packed: Bundle) -> str:
    """The disk gives other bytes, and `fstat` says nothing of it: so the index has what it says now."""
    content = store.content(packed, "pkg/1.txt")
    flip(content)
    info = content.stat()
    kept = json.loads(store.index.read_text())
    kept["lines"][content.name][-2:] = [info.st_mtime_ns, info.st_ctime_ns]
    store.index.write_text(json.dumps(kept))
    return content.name


def next_day(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(checked, "_DAY_S", 1e-9)


def next_boot(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(checked, "first_line", lambda _: "another-boot")


def no_boot_id(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(checked, "first_line", lambda _: "")


@pytest.mark.parametrize("later", [next_day, next_boot, no_boot_id])
def test_nothing_counts_after_a_boot_or_a_day(
    store: Store, monkeypatch: pytest.MonkeyPatch, later: Callable[[pytest.MonkeyPatch], None]
) -> None:
    packed = store.ship()
    store.copy(packed)
    rotten = rot(store, packed)
    assert "damaged" not in CodeStore(str(store.parent), packed.digest).copy_to(str(store.work())), (
        "the index is as the test means it"
    )
    later(monkeypatch)
    assert [*store.copy(packed)["damaged"]] == [rotten]
    assert store.read == FILES * SIZE


def test_without_a_boot_id_nothing_is_noted(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    no_boot_id(monkeypatch)
    packed = store.ship()
    for _ in range(2):
        store.copy(packed)
        assert store.read == FILES * SIZE


def test_what_has_changed_just_now_is_read_again(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another change in the same tick of the clock would look the same."""
    monkeypatch.setattr(checked, "SETTLED_NS", 3600 * 10**9)
    packed = store.ship()
    for _ in range(2):
        store.copy(packed)
        assert store.read == FILES * SIZE
    assert not store.index.exists()


def test_what_changes_while_it_is_read_is_not_noted(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checked, "SETTLED_NS", 20_000_000)  # longer than a tick of any kernel's clock
    packed = store.ship()
    time.sleep(0.1)
    content = store.content(packed, "pkg/1.txt")
    crc32 = zlib.crc32

    def changed_meanwhile(data: memoryview, before: int) -> int:
        result = crc32(data, before)
        if store.read == 2 * SIZE:  # the last byte of that one has been read
            in_place(content)
        return result

    with monkeypatch.context() as patch:
        patch.setattr(zlib, "crc32", changed_meanwhile)
        assert "damaged" not in CodeStore(str(store.parent), packed.digest).copy_to(str(store.work()))
    assert sorted(json.loads(store.index.read_text())["lines"]) == sorted({*packed.contents} - {content.name})
    assert [*store.copy(packed)["damaged"]] == [content.name]


def test_on_a_network_disk_all_is_read_each_time(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checked.os, "major", lambda _: 0)
    packed = store.ship()
    for _ in range(2):
        store.copy(packed)
        assert store.read == FILES * SIZE


@pytest.mark.parametrize(
    "text", [b"", b"{", b"\xff\x80", b"[]", b"7", b"null", b'{"when": null}', b'{"when": WHEN, "lines": [1]}']
)
def test_a_damaged_index_counts_for_nothing(store: Store, text: bytes) -> None:
    packed = store.ship()
    store.copy(packed)
    when = json.dumps(json.loads(store.index.read_text())["when"])
    store.index.write_bytes(text.replace(b"WHEN", when.encode()))
    for read in (FILES * SIZE, 0):
        store.copy(packed)
        assert store.read == read


def test_a_damaged_line_of_the_index_counts_for_nothing(store: Store) -> None:
    packed = store.ship()
    store.copy(packed)
    content = store.content(packed, "pkg/1.txt")
    whole = store.index.read_text()
    line = re.escape(content.name) + r'":\s*\[([^]]*)\]'
    [numbers] = re.findall(line, whole)
    for damaged in ("", numbers[:-1], numbers[:-1] + str(9 - int(numbers[-1])), '"nonsense"', "[]"):
        store.index.write_text(whole.replace(numbers, damaged))
        store.copy(packed)
        assert store.read == SIZE


def test_a_full_disk_means_that_it_is_read_again(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: str, text: str) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    packed = store.ship()
    with monkeypatch.context() as patch:
        patch.setattr(checked, "replace", full)
        store.copy(packed)
    for read in (FILES * SIZE, 0):
        store.copy(packed)
        assert store.read == read


def test_two_agents_at_once_lose_lines_and_never_the_index(store: Store) -> None:
    packed = store.ship()
    names = [store.content(packed, f"pkg/{number}.txt") for number in range(FILES)]
    both = [checked.Checked(str(store.parent / "code")) for _ in range(2)]
    for each, content in zip(both, names, strict=False):
        each.add(content.name, 1, content.stat())
    for each in both:
        each.keep()
    now = checked.Checked(str(store.parent / "code"))
    assert [now.has(each.name, SIZE, 1, each.stat()) for each in names] == [False, True, False]
    assert not now.has(names[1].name, SIZE + 1, 1, names[1].stat())
    assert not now.has(names[1].name, SIZE, 2, names[1].stat())


def test_little_code_needs_no_index(store: Store) -> None:
    for number in range(FILES):
        (store.code / f"pkg/{number}.txt").write_text("pass\n")
    packed = store.ship()
    store.copy(packed)
    assert not store.index.exists()
