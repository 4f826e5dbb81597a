"""Directories of code that tests make up, and what a bundle of them holds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from tflaunch.agent.files.code_store import CodeStore
from tflaunch.code.bundle import Bundle
from tflaunch.code.shipping import frames
from tflaunch.protocol import wire


def grow(root: Path, files: Mapping[str, str]) -> Path:
    """Make files with these contents; a name with a slash at its end is a directory."""
    for name, content in files.items():
        path = root / name
        if name.endswith("/"):
            path.mkdir(parents=True, exist_ok=True)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
    return root


def members(packed: Bundle) -> dict[str, tuple[str | int, ...]]:
    return {str(path): tuple(entry) for path, *entry in packed.entries}


def files(packed: Bundle) -> set[str]:
    return {name for name, entry in members(packed).items() if entry[0] != "d"}


def unpack(packed: Bundle, directory: Path) -> Path:
    """As a host does it."""
    directory.with_name("store").mkdir(parents=True, exist_ok=True)
    store = CodeStore(str(directory.with_name("store")), packed.digest)
    for message in blobs(packed, store.lacks(packed.manifest, last=True)):
        store.add(message.body, message["packed"], message["last"])
    directory.mkdir()
    store.copy_to(str(directory))
    return directory


def blobs(packed: Bundle, lacks: Iterable[int] | None) -> Iterator[wire.Message]:
    """The messages with the contents that a store lacks."""
    if lacks:
        yield from wire.Decoder().feed(b"".join(frame for frame, _ in frames(packed, lacks)))


def links(packed: Bundle) -> dict[str, str]:
    return {name: str(entry[1]) for name, entry in members(packed).items() if entry[0] == "l"}


def content(packed: Bundle, name: str) -> bytes:
    return packed.contents[str(members(packed)[name][1])]


KEY = "-----BEGIN OPENSSH PRIVATE KEY-----\nc2VjcmV0\n-----END OPENSSH PRIVATE KEY-----\n"
