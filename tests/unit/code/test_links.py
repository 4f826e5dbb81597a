"""Links in the user's code."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.code import KEY, content, files, grow, links, members, unpack
from tflaunch.code.bundle import bundle
from tflaunch.code.what_is_shipped import notes


def test_links(tmp_path: Path) -> None:
    grow(tmp_path, {"outside/shared.py": "shared", "code/lib/a.py": "a", "code/trainer.py": ""})
    code = tmp_path / "code"
    for name, target in {
        "near.py": "lib/a.py",
        "lib/up.py": "../trainer.py",
        "folder": "lib",
        "absolute.py": str(code / "lib/a.py"),
        "lib/around.py": "../../code/trainer.py",
        "shared.py": "../outside/shared.py",
        "later.py": "lib/made-by-setup.py",
        ".#lock": "me@laptop.123",
        "dead.py": "/nowhere/dead.py",
        "self": "self",
    }.items():
        (code / name).symlink_to(target)
    packed = bundle(code)
    found = members(packed)
    assert {name: entry[1] for name, entry in found.items() if entry[0] == "l"} == {
        "near.py": "lib/a.py",
        "lib/up.py": "../trainer.py",
        "folder": "lib",
        "absolute.py": "lib/a.py",
        "lib/around.py": "../trainer.py",
        "later.py": "lib/made-by-setup.py",
        ".#lock": "me@laptop.123",
        "self": "self",
        "shared.py": str(tmp_path / "outside/shared.py"),
        "dead.py": "/nowhere/dead.py",
    }
    assert dict(packed.links) == {
        "shared.py": str(tmp_path / "outside/shared.py"),
        "dead.py": "/nowhere/dead.py",
    }
    there = unpack(packed, tmp_path / "there")
    assert (there / "absolute.py").read_text() == "a"
    assert (there / "folder/up.py").resolve() == there / "trainer.py"


def test_a_link_to_what_is_left_out_is_told(tmp_path: Path) -> None:
    grow(
        tmp_path,
        {"trainer.py": "", ".gitignore": "big/\nmodel.bin\n", "big/a": "", "model.bin": "x", "lib/b.py": ""},
    )
    for name, target in {
        "data": "big",
        "lib/a": "../big/a",
        "latest": "model.bin",
        "fine": "lib",
        "here": ".",
        "later": "made-by-setup",
    }.items():
        (tmp_path / name).symlink_to(target)
    packed = bundle(tmp_path)
    assert packed.dangling == (("data", "big"), ("latest", "model.bin"), ("lib/a", "big/a"))
    assert [text for text in notes(packed, None) if "lead nowhere" in text] == [
        "links to what is not shipped lead nowhere on the hosts: data -> big, latest -> model.bin, "
        "lib/a -> big/a; --ship big ships it"
    ]
    shipped = bundle(tmp_path, ship=("big", "model.bin"))
    assert shipped.dangling == ()


@pytest.mark.parametrize("way", ["absolute", "relative", "in a chain", "by a directory that is a link"])
def test_a_link_that_leads_out_takes_nothing_along(tmp_path: Path, way: str) -> None:
    grow(
        tmp_path,
        {"home/.ssh/id_test": KEY, "home/notes.txt": "private", "code/trainer.py": "", "elsewhere/x": ""},
    )
    home, code = tmp_path / "home", tmp_path / "code"
    for name, target in {
        "config.json": home / ".ssh/id_test",
        "notes": home / "notes.txt",
        "all": home,
    }.items():
        if way == "relative":
            (code / name).symlink_to(os.path.relpath(target, code))
        elif way == "in a chain":
            (tmp_path / f"elsewhere/{name}").symlink_to(target)
            (code / f"{name}.next").symlink_to(f"../elsewhere/{name}")
            (code / name).symlink_to(f"{name}.next")
        elif way == "by a directory that is a link":
            (code / f"{name}-up").symlink_to(target.parent)
            (code / name).symlink_to(f"{name}-up/{target.name}")
        else:
            (code / name).symlink_to(target)
    packed = bundle(code)
    assert not any(
        secret in given for given in packed.contents.values() for secret in (b"c2VjcmV0", b"private")
    )
    assert files(packed) - {"trainer.py"} == set(links(packed)) == set(dict(packed.links))
    # Where they lead here is where they lead there, if there is anything.
    there = unpack(packed, tmp_path / "far/away")
    assert all((there / name).resolve() == (code / name).resolve() for name in links(packed))


def test_with_follow_links_files_and_directories_outside_are_shipped_but_no_secrets(tmp_path: Path) -> None:
    grow(
        tmp_path,
        {"code/trainer.py": "", "code/sub/": "", "lib/a.py": "a", "lib/deep/b.py": "b", "lib/.env": "A=1"},
    )
    grow(
        tmp_path,
        {"home/.ssh/id_test": KEY, "home/.aws/credentials": "x", "home/.netrc": "x", "data/one": "1"},
    )
    code = tmp_path / "code"
    (code / "lib").symlink_to("../lib")
    (code / "sub/again").symlink_to(tmp_path / "lib/deep")
    (code / "one").symlink_to(tmp_path / "data/one")
    (tmp_path / "lib/data").symlink_to("../data")  # links in what is followed are followed
    (tmp_path / "lib/near.py").symlink_to("deep/b.py")
    (tmp_path / "lib/back").symlink_to("../code/trainer.py")
    for name, target in {
        "config.json": ".ssh/id_test",
        "aws": ".aws",
        "machines": ".netrc",
        "ssh": ".ssh",
    }.items():
        (code / name).symlink_to(tmp_path / "home" / target)
    packed = bundle(code, follow_links=True)
    assert links(packed) == {
        "lib/near.py": "deep/b.py",
        "lib/back": "../trainer.py",
        "sub/again": "../lib/deep",
    }
    assert content(packed, "lib/deep/b.py") == b"b"
    assert content(packed, "one") == content(packed, "lib/data/one") == b"1"
    assert {secret.path for secret in packed.secrets} == {
        "lib/.env",
        "config.json",
        "aws/",
        "machines",
        "ssh/",
    }
    assert not packed.links
    there = unpack(packed, tmp_path / "there")
    assert (there / "sub/again/b.py").read_text() == "b"
    assert (there / "lib/back").resolve() == there / "trainer.py"
    assert bundle(code, follow_links=True, ship=["lib/.env", "config.json"]).size == packed.size + 3 + len(
        KEY
    )


def test_loops_of_links_have_an_end(tmp_path: Path) -> None:
    grow(tmp_path, {"code/trainer.py": "", "code/sub/": "", "one/a": "", "two/b": ""})
    for name, target in {
        "code/up": "..",
        "code/sub/top": "../..",
        "code/one": "../one",
        "code/round": "round2",
        "code/round2": "round",
        "one/two": "../two",
        "two/one": "../one",
        "two/itself": ".",
        "two/code": "../code",
    }.items():
        (tmp_path / name).symlink_to(target)
    packed = bundle(tmp_path / "code", follow_links=True)
    assert files(packed) - set(links(packed)) == {"trainer.py", "one/a", "one/two/b"}
    assert dict(packed.links) == {"up": str(tmp_path), "sub/top": str(tmp_path)}
    assert links(packed)["one/two/one"] == ".."
    assert links(packed)["one/two/code"] == "../.."
    unpack(packed, tmp_path / "there")


def test_in_one_git_work_tree_links_are_followed_to_what_git_does_not_ignore(tmp_path: Path) -> None:
    repo = grow(
        tmp_path / "repo",
        {
            ".git/config": "url = https://user:password@example.org",
            ".gitignore": "/data/\n*.log\nlocal.py\n",
            "common/util.py": "util",
            "common/x.log": "",
            "common/.env": "A=1",
            "data/train.bin": "data",
            "local.py": "",
            "jobs/lm/trainer.py": "",
        },
    )
    grow(tmp_path, {"outside.py": ""})
    code = repo / "jobs/lm"
    for name, target in {
        "common": "../../common",
        "util.py": "../../common/util.py",
        "data": "../../data",
        "local.py2": "../../local.py",
        "git": "../../.git",
        "gitconfig": "../../.git/config",
        "repo": "../..",
        "outside.py": "../../../outside.py",
    }.items():
        (code / name).symlink_to(target)
    packed = bundle(code)
    assert set(dict(packed.links)) == {"data", "local.py2", "git", "gitconfig", "repo", "outside.py"}
    assert content(packed, "common/util.py") == b"util"
    assert links(packed)["util.py"] == "common/util.py"
    assert files(packed) - set(links(packed)) == {"trainer.py", "common/util.py"}
    assert [secret.path for secret in packed.secrets] == ["common/.env"]


def test_the_directory_itself_may_be_a_link(tmp_path: Path) -> None:
    grow(tmp_path, {"real/trainer.py": "", "real/lib/a.py": ""})
    (tmp_path / "code").symlink_to("real")
    (tmp_path / "real/b.py").symlink_to(tmp_path / "code/lib/a.py")
    packed = bundle(tmp_path / "code")
    assert (links(packed), packed.links) == ({"b.py": "lib/a.py"}, ())


def test_a_link_that_leaves_on_its_way_leads_there_without(tmp_path: Path) -> None:
    grow(tmp_path, {"code/lib/deep/a.py": "", "code/b.py": "", "other/": ""})
    for name, target in {
        "code/out": "../other",
        "other/back.py": "../code/b.py",
        "code/by-name.py": "../code/b.py",
        "code/through.py": "out/back.py",
        "code/around.py": "out/../code/b.py",
        "code/deep": "lib/deep",
        "code/near.py": "deep/a.py",
        "code/lib/odd.py": "deep/../../b.py",
    }.items():
        (tmp_path / name).symlink_to(target)
    packed = bundle(tmp_path / "code")
    assert links(packed) == {
        "out": str(tmp_path / "other"),
        "by-name.py": "b.py",
        "through.py": "b.py",
        "around.py": "b.py",
        "deep": "lib/deep",
        "near.py": "deep/a.py",
        "lib/odd.py": "../b.py",
    }
