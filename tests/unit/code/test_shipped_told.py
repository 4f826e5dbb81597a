"""What is shipped is told, with how much of it and what stays here; what fetch brought is none of it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.code import KEY, files, grow, links
from tests.support.fetched import MARK, bring
from tflaunch.code.bundle import bundle, code_of
from tflaunch.code.program import find_program
from tflaunch.code.shipping import Shipped
from tflaunch.code.what_is_shipped import own_code, shipped_text, summary
from tflaunch.hosts import load

# ---- what was fetched is not shipped


def test_what_was_fetched_is_not_shipped_but_what_lies_beside_it_is(tmp_path: Path) -> None:
    code = grow(tmp_path / "code", {"trainer.py": "", "logs/mine": "", "empty/": ""})
    bring(code / "trainer-k3f9x2", "a", "b")
    bring(code, "checkpoints/a", "logs/came", "metrics.csv", "trainer.pyc")
    grow(code, {"logs/.tflaunch-0-1.part": "", "logs/later": "", "trainer-k3f9x2/c": ""})
    packed = bundle(code, keep="trainer.py")
    assert files(packed) == {"trainer.py", "logs/mine", "logs/later"}
    assert set(packed.fetched) == {
        *("checkpoints/", "logs/.tflaunch-0-1.part", "logs/came", "metrics.csv", "trainer-k3f9x2/"),
        "trainer.pyc",
    }
    assert {path for path, kind, *_ in packed.entries if kind == "d"} == {"logs", "empty"}
    for ship, come in {
        "trainer-k3f9x2": {"trainer-k3f9x2/a", "trainer-k3f9x2/b", "trainer-k3f9x2/c"},
        "trainer-k3f9x2/a": {"trainer-k3f9x2/a"},
        "checkpoints": {"checkpoints/a"},
        "checkpoints/a": {"checkpoints/a"},
        "logs": {"logs/came", "logs/.tflaunch-0-1.part"},
        "metrics.csv": {"metrics.csv"},
    }.items():
        shipped = bundle(code, keep="trainer.py", ship=[ship])
        assert files(shipped) - files(packed) == come
        assert set(shipped.fetched) == set(packed.fetched) - {ship, f"{ship}/"} - come


@pytest.mark.parametrize("name", [".gitignore", ".tflaunchignore"])
def test_a_pipe_is_no_ignore_file(tmp_path: Path, name: str) -> None:
    (tmp_path / "a.py").touch()
    os.mkfifo(tmp_path / name)
    assert [entry[0] for entry in bundle(tmp_path).entries] == ["a.py"]


def test_a_fetched_directory_that_is_the_program_s_place_is_shipped(tmp_path: Path) -> None:
    bring(tmp_path / "trainer-k3f9x2", "trainer.py", "sub/b.py")
    grow(tmp_path, {"main.py": ""})
    for target, root in (
        ("trainer-k3f9x2/trainer.py", None),
        ("trainer-k3f9x2/trainer.py", tmp_path / "trainer-k3f9x2"),
    ):
        packed = code_of(find_program(target, False, tmp_path, root))
        assert files(packed) == {"trainer.py", "sub/b.py"}
    assert files(bundle(tmp_path / "trainer-k3f9x2/sub")) == {"b.py"}
    # Of a place that holds it only the program itself is.
    packed = code_of(find_program("trainer-k3f9x2/trainer.py", False, tmp_path, tmp_path))
    assert files(packed) == {"main.py", "trainer-k3f9x2/trainer.py"}


def test_a_mark_above_counts_if_it_is_the_user_s(tmp_path: Path) -> None:
    grow(tmp_path, {"src/trainer.py": "", "src/deep/": ""})
    bring(tmp_path, "src/vocabulary.txt", "src/deep/a", "src/made/b")
    assert files(bundle(tmp_path / "src")) == {"trainer.py"}
    if not os.geteuid():
        os.chown(tmp_path / MARK, 65534, 65534)
        assert files(bundle(tmp_path / "src")) == {"trainer.py", "vocabulary.txt", "deep/a", "made/b"}


def test_a_module_that_was_fetched_is_not_shipped_from_a_home_directory(tmp_path: Path) -> None:
    home = grow(tmp_path, {"trainer.py": "import mine, came, run.helper", "mine.py": ""})
    bring(home, "came.py")
    bring(home / "run", "helper.py")
    only = ["trainer.py", "mine.py", "came.py", "run/helper.py"]
    packed = bundle(home, keep="trainer.py", only=only)
    assert (files(packed), packed.fetched) == ({"trainer.py", "mine.py"}, ("came.py", "run/helper.py"))
    assert "came.py" in files(bundle(home, keep="trainer.py", only=only, ship=["came.py"]))
    assert "came.py" in files(bundle(home, keep="came.py", only=only))


# ---- and is told


def test_the_line_says_how_much_and_what_was_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    code = grow(
        tmp_path / "proj",
        {
            "trainer.py": "1" * 2000, "a.py": "2", "same.py": "2", ".env": "", "k": KEY, ".gitignore": "*.log\n",
            "a.log": "", "b.log": "", ".tflaunchignore": "notes\n", "notes/x": "", "__pycache__/x": "",
        },
    )  # fmt: skip
    bring(code / "trainer-k3f9x2", "a")
    packed = bundle(code)
    about = (
        "5 files, 2.0 KiB of ~/proj (2 left out by .gitignore, 1 by .tflaunchignore, 2 secrets, 1 fetched)"
    )
    assert summary(packed) == about
    grow(tmp_path / "git", {".git/info/exclude": "x\n", "x": "", "a:1: b/.gitignore": "y\n", "a:1: b/y": ""})
    assert "(1 left out by .git/info/exclude, 1 by .gitignore)" in summary(bundle(tmp_path / "git"))
    everything = (len(packed.contents), sum(map(len, packed.contents.values())))
    assert everything[0] == packed.files - 1
    for sent, new, whole, said in (
        ({"h1": everything, "h2": everything}, everything, True, f"shipped {about}"),
        ({"h1": (0, 0), "h2": (0, 0)}, (0, 0), False, f"{about}: already there"),
        (
            {"h1": (1, 6), "h2": (0, 0)},
            (1, 6),
            False,
            f"shipped {about}; new to 1 of 2 hosts: 1 file, 6 B",
        ),
        ({"h1": (1, 6), "h2": (1, 1)}, (2, 7), False, f"shipped {about}; new to the hosts: 2 files, 7 B"),
    ):
        assert shipped_text(packed, Shipped(sent, *new, whole)) == said


def test_hosts_that_have_the_code_are_named(tmp_path: Path) -> None:
    text = "hosts: [{name: a, workdir: /srv}, b, {name: c1, workdir: /srv}, {name: c2, workdir: ~/x}]\n"
    file = grow(tmp_path, {"hosts.yaml": text}) / "hosts.yaml"
    told = own_code(load(str(file)))
    assert told.startswith("no code is shipped to ")
    assert "where it is in /srv; c2, where it is in ~/x (`workdir:` in " in told
    assert own_code(load("a,b")) == ""


def test_links_to_directories_elsewhere_are_links_on_the_host(tmp_path: Path) -> None:
    code = grow(tmp_path / "code", {"trainer.py": ""})
    grow(tmp_path, {"datasets/big": "", "data/x": ""})
    (code / "data").symlink_to(tmp_path / "datasets")
    (code / "more").symlink_to("../data")
    packed = bundle(code)
    assert links(packed) == {"data": str(tmp_path / "datasets"), "more": str(tmp_path / "data")}
