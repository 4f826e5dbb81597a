"""The user's code: what of its directory is shipped, and that it is always the same."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.code import KEY, files, grow, members, unpack
from tflaunch.code.bundle import bundle
from tflaunch.code.program import find_program
from tflaunch.code.shipping import frames
from tflaunch.protocol import wire
from tflaunch.protocol.errors import UsageError

NOBODY = 65534


# --- what is shipped -------------------------------------------------------------------------------------


def test_what_is_never_code_stays_here(tmp_path: Path) -> None:
    grow(
        tmp_path,
        dict.fromkeys(
            [
                "trainer.py", "lib/helper.py", "empty/",
                ".git/config", "lib/__pycache__/helper.pyc", ".venv/pyvenv.cfg", ".venv/bin/python",
                "conda/conda-meta/history", ".mypy_cache/x", ".cache/CACHEDIR.TAG", ".cache/big",
                f"tflaunch-{os.getuid()}/trainer-aaaaaa/host/work/trainer.py",
            ],
            "",
        ),
    )  # fmt: skip
    packed = bundle(tmp_path)
    assert set(members(packed)) == {"trainer.py", "lib", "lib/helper.py", "empty"}
    assert (packed.files, packed.size, packed.caches) == (2, 0, 7)


def test_the_directory_itself_may_be_an_environment(tmp_path: Path) -> None:
    assert files(bundle(grow(tmp_path, {"pyvenv.cfg": "", "trainer.py": ""}))) == {"pyvenv.cfg", "trainer.py"}


@pytest.mark.parametrize(
    ("ignores", "left"),
    [
        ({".gitignore": "*.log\n"}, {"a.log", "sub/b.log"}),
        ({".gitignore": "*.log\n!a.log\n"}, {"sub/b.log"}),
        ({".gitignore": "/data/\n"}, {"data/x.bin", "data/deep/y.bin"}),
        ({".gitignore": "data/**\n!data/x.bin\n"}, {"data/deep/y.bin"}),
        ({".gitignore": "data/*\n!data/deep/\n"}, {"data/x.bin"}),
        ({".gitignore": "*\n!*/\n!*.py\n"}, {"a.log", "sub/b.log", "data/x.bin", "data/deep/y.bin"}),
        ({".gitignore": "deep\n!*/\n"}, set()),
        ({".gitignore": "*.log\n", "sub/.gitignore": "!b.log\n"}, {"a.log"}),
        ({"sub/.gitignore": "b.log\n"}, {"sub/b.log"}),
        ({".gitignore": "# a comment\n\n!\n\\\n*.log\r\n"}, {"a.log", "sub/b.log"}),
        ({".gitignore": "\ufeff*.log\n"}, {"a.log", "sub/b.log"}),
        ({".gitignore": "[[a].bin\n*.log  \n"}, {"a.log", "sub/b.log"}),
        ({".git/info/exclude": "*.bin\n"}, {"data/x.bin", "data/deep/y.bin"}),
        ({".git/info/exclude": "*.log\n", ".gitignore": "!a.log\n"}, {"sub/b.log"}),
    ],
)
def test_ignored_files_stay_here(tmp_path: Path, ignores: dict[str, str], left: set[str]) -> None:
    everything = {"trainer.py", "a.log", "sub/b.log", "data/x.bin", "data/deep/y.bin"}
    grow(tmp_path, {**dict.fromkeys(everything, ""), ".git/HEAD": "", **ignores})
    shipped = {name for name in files(bundle(tmp_path)) if not name.endswith(".gitignore")}
    assert everything - shipped == left


def test_ignore_files_above_speak_too_up_to_the_work_tree(tmp_path: Path) -> None:
    grow(
        tmp_path,
        {".gitignore": "trainer.py\n", "repo/.git/HEAD": "", "repo/.gitignore": "*.log\n/lab/a.txt\n"},
    )
    code = grow(tmp_path / "repo/lab", dict.fromkeys(["trainer.py", "x.log", "a.txt", "deep/a.txt"], ""))
    assert files(bundle(code)) == {"trainer.py", "deep/a.txt"}


def test_a_directory_that_git_ignores_is_shipped_when_asked_for(tmp_path: Path) -> None:
    grow(tmp_path, {".git/HEAD": "", ".gitignore": "scratch/\n*.log\n", "scratch/.gitignore": "*.bin\n"})
    code = grow(tmp_path / "scratch/now", dict.fromkeys(["trainer.py", "x.log"], ""))
    assert files(bundle(code)) == {"trainer.py", "x.log"}


def test_the_program_is_shipped_whatever_is_ignored(tmp_path: Path) -> None:
    grow(tmp_path, {".gitignore": "bin/\n", "bin/train.py": "", "bin/other.py": ""})
    assert set(members(bundle(tmp_path, keep="bin/train.py"))) == {".gitignore", "bin", "bin/train.py"}


def test_a_tflaunchignore_says_more_than_any_gitignore_but_brings_no_secret_back(tmp_path: Path) -> None:
    grow(
        tmp_path,
        {
            ".git/HEAD": "",
            ".gitignore": "/sub/data/\n*.bin\n",
            ".tflaunchignore": "!small.bin\nplots/\n!.env\n!*.key\n!.ssh/\n!__pycache__/\n!sub/out/",
            "small.bin": "",
            "large.bin": "",
            "plots/a": "",
            ".env": "A=1",
            "a.key": KEY,
            ".ssh/config": "",
            "__pycache__/a.pyc": "",
            "sub/.gitignore": "small.bin\nout/\n",
            "sub/.tflaunchignore": "!data/\n/plots.py\n",
            "sub/small.bin": "",
            "sub/data/a": "",
            "sub/data/b.bin": "",
            "sub/out/a": "",
            "sub/plots.py": "",
        },
    )
    packed = bundle(tmp_path)
    names = {name for name in files(packed) if not name.endswith("ignore")}
    assert names == {"small.bin", "sub/small.bin", "sub/data/a", "sub/out/a"}
    assert {left.path: left.why for left in packed.left if left.kind == "ignored"} == {
        "large.bin": ".gitignore:2: *.bin",
        "plots/": ".tflaunchignore:2: plots/",
        "sub/data/b.bin": ".gitignore:2: *.bin",
        "sub/plots.py": "sub/.tflaunchignore:2: /plots.py",
    }
    assert {secret.path for secret in packed.secrets} == {".env", "a.key", ".ssh/"}
    assert packed.caches == 2
    # Those above, up to the work tree, speak too.
    assert files(bundle(tmp_path / "sub")) >= {"small.bin", "out/a"}
    assert "plots.py" not in files(bundle(tmp_path / "sub"))


def test_a_directory_that_is_asked_for_comes_with_what_is_ignored_in_it(tmp_path: Path) -> None:
    grow(tmp_path, {".gitignore": "*.bin\n", "data/a.bin": "12", "data/b": "345", "data/deep/c.bin": ""})
    packed = bundle(tmp_path, ship=["data"])
    assert files(packed) == {".gitignore", "data/a.bin", "data/b", "data/deep/c.bin"}
    assert (packed.size, packed.ignored) == (len("*.bin\n") + 5, 0)
    (tmp_path / "data/out").symlink_to("/nowhere")
    assert bundle(tmp_path, ship=["data"]).links == (("data/out", "/nowhere"),)
    grow(tmp_path, {"env/pyvenv.cfg": "", "env/a": ""})
    assert files(bundle(tmp_path, ship=["env"])) >= {"env/a", "env/pyvenv.cfg"}


def test_a_bad_line_of_gitignore_is_told_with_its_place(tmp_path: Path) -> None:
    grow(tmp_path, {"sub/.gitignore": "# mine\n*.log\n[z-a]*\n", "sub/a.log": "", "sub/b": ""})
    packed = bundle(tmp_path)
    [odd] = packed.odd
    assert odd.startswith(f"{tmp_path}/sub/.gitignore:3:1: '[z-a]*' holds the range z-a")
    assert files(packed) == {"sub/.gitignore", "sub/b"}


def test_what_is_no_file_is_left_and_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    grow(tmp_path, {"trainer.py": ""})
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        monkeypatch.chdir(tmp_path)  # an absolute path may be too long for a socket
        listener.bind("socket")
        packed = bundle(tmp_path)
    assert files(packed) == {"trainer.py"}
    assert sorted(packed.skipped) == [
        "pipe: neither a file nor a directory",
        "socket: neither a file nor a directory",
    ]


@pytest.mark.skipif(sys.platform == "darwin", reason="file names are UTF-8 there")
def test_names_that_are_not_utf8(tmp_path: Path) -> None:
    names = [os.fsdecode(b"\xff\xfe.txt"), "π.py", "a\nb", "x" * 200 + "/" + "y" * 200]
    grow(tmp_path, dict.fromkeys(names, "here"))
    packed = bundle(tmp_path)
    assert files(packed) == set(names)
    there = unpack(packed, tmp_path / "there")
    assert all((there / name).read_text() == "here" for name in names)


@pytest.fixture
def unprivileged(request: pytest.FixtureRequest) -> Iterator[Path]:
    """A directory, and no right to read what its owner has closed."""
    folder = Path(tempfile.mkdtemp()).resolve()
    request.addfinalizer(lambda: shutil.rmtree(folder))
    if os.geteuid():
        yield folder
        return
    os.chown(folder, NOBODY, NOBODY)
    os.seteuid(NOBODY)
    try:
        yield folder
    finally:
        os.seteuid(0)


@pytest.mark.parametrize("closed", ["secret.txt", "closed/", ".gitignore"])
def test_unreadable(unprivileged: Path, closed: str) -> None:
    grow(unprivileged, {"trainer.py": "", closed: ""})
    (unprivileged / closed).chmod(0)
    try:
        with pytest.raises(UsageError) as raised:
            bundle(unprivileged)
    finally:
        (unprivileged / closed).chmod(0o700)
    assert raised.value.message == f"{unprivileged / closed}: cannot be read: Permission denied"


def test_an_unreadable_script(unprivileged: Path) -> None:
    grow(unprivileged, {"trainer.py": ""})
    (unprivileged / "trainer.py").chmod(0)
    with pytest.raises(UsageError, match=r"trainer\.py: cannot be read: Permission denied"):
        find_program("trainer.py", False, unprivileged)


# --- always the same -------------------------------------------------------------------------------------


def test_the_same_tree_has_the_same_digest_and_bytes(tmp_path: Path) -> None:
    content = {"trainer.py": "print(1)", "lib/a.py": "a", "lib/b.py": "b"}
    one = bundle(grow(tmp_path / "one", content))
    other = grow(tmp_path / "two", dict(reversed(content.items())))
    os.utime(other / "trainer.py", (1, 1))
    (other / "lib/a.py").chmod(0o600)
    two = bundle(other)
    assert (one.digest, one.manifest, one.contents) == (two.digest, two.manifest, two.contents)
    assert (one.files, one.size) == (3, 10)


@pytest.mark.parametrize("change", ["content", "name", "execute", "move", "empty directory", "link", "file"])
def test_any_change_changes_the_digest(tmp_path: Path, change: str) -> None:
    grow(tmp_path, {"trainer.py": "print(1)", "lib/a.py": "a"})
    (tmp_path / "link").symlink_to("lib")
    before = bundle(tmp_path).digest
    if change == "content":
        (tmp_path / "trainer.py").write_text("print(2)")
    elif change == "name":
        (tmp_path / "trainer.py").rename(tmp_path / "trainer2.py")
    elif change == "execute":
        (tmp_path / "trainer.py").chmod(0o755)
    elif change == "move":
        (tmp_path / "lib/a.py").rename(tmp_path / "a.py")
    elif change == "empty directory":
        (tmp_path / "new").mkdir()
    else:
        (tmp_path / "link").unlink()
        if change == "link":
            (tmp_path / "link").symlink_to("trainer.py")
        else:
            (tmp_path / "link").write_text("lib")
    assert bundle(tmp_path).digest != before


def test_execute_bits_survive(tmp_path: Path) -> None:
    grow(tmp_path, {"run.sh": "", "trainer.py": ""})
    (tmp_path / "run.sh").chmod(0o700)
    found = members(bundle(tmp_path))
    assert (found["run.sh"][0], found["trainer.py"][0]) == ("x", "f")


# --- too large -------------------------------------------------------------------------------------------


def sparse(path: Path, size: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as stream:
        stream.truncate(size)


def test_too_large_names_the_largest_without_reading(tmp_path: Path) -> None:
    grow(tmp_path, {"trainer.py": "print(1)", ".gitignore": "ignored\n"})
    sparse(tmp_path / "ignored", 1 << 40)
    sparse(tmp_path / "data/raw/train.bin", 50 << 30)  # would take minutes to read
    sparse(tmp_path / "ckpt/a", 60 << 20)
    sparse(tmp_path / "ckpt/b", 60 << 20)
    for i in range(5):
        sparse(tmp_path / f"small{i}", (5 - i) << 10)
    with pytest.raises(UsageError) as raised:
        bundle(tmp_path)
    message, _, largest = raised.value.message.partition("\n")
    assert message == f"{tmp_path}: 50.1 GiB to ship, 100.0 MiB is the limit; the largest are"
    assert [line.split() for line in largest.split("\n")] == [
        ["50.0", "GiB", "data/raw/train.bin"],
        ["120.0", "MiB", "ckpt/"],
        ["5.0", "KiB", "small0"],
        ["4.0", "KiB", "small1"],
        ["3.0", "KiB", "small2"],
    ]
    assert all(way in raised.value.hint for way in (".gitignore", "--no-sync", "workdir:"))


def test_the_limit_is_inclusive(tmp_path: Path) -> None:
    sparse(tmp_path / "x", 1000)
    assert (bundle(tmp_path, limit_bytes=1000).size, len(files(bundle(tmp_path)))) == (1000, 1)
    with pytest.raises(UsageError, match="1000 bytes to ship, 999 bytes is the limit"):
        bundle(tmp_path, limit_bytes=999)


def test_a_huge_tree_is_not_walked_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tflaunch.code.code_tree.ENTRIES_BEYOND", 3)
    for folder in "abcdefgh":
        for name in "123":
            sparse(tmp_path / folder / name, 1 << 20)
    with pytest.raises(UsageError, match=r"at least [1-9].* MiB to ship, 1.0 MiB is the limit"):
        bundle(tmp_path, limit_bytes=1 << 20)


def test_the_home_directory_is_likely_a_mistake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sparse(tmp_path / "film.mkv", 1 << 30)
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(UsageError, match=r"that is your home directory: is the script where you want it\?"):
        bundle(tmp_path)


def test_small_contents_go_together_and_large_ones_in_parts(tmp_path: Path) -> None:
    grow(tmp_path / "code", {f"{number}/{number}.py": str(number) * (number % 40) for number in range(300)})
    (tmp_path / "code/large").write_bytes(os.urandom(1 << 20))
    packed = bundle(tmp_path / "code")
    places = [place for place, entry in enumerate(packed.entries) if entry[1] in ("f", "x")]
    messages = wire.Decoder().feed(b"".join(frame for frame, _ in frames(packed, places)))
    assert len(messages) <= 11
    assert [message["last"] for message in messages] == [False] * (len(messages) - 1) + [True]
    there = unpack(packed, tmp_path / "there")
    for path in (tmp_path / "code").rglob("*"):
        assert (
            path.is_dir() or (there / path.relative_to(tmp_path / "code")).read_bytes() == path.read_bytes()
        )


def test_the_shipped_program_runs(tmp_path: Path) -> None:
    name = '-it\'s "odd" $HOME.py'
    code = grow(
        tmp_path / "code", {name: "import lib.a; print(lib.a.value)", "lib/a.py": "value = 'shipped'"}
    )
    program = find_program(name, False, code)
    there = unpack(bundle(program.directory, keep=program.file), tmp_path / "there")
    shutil.rmtree(code)
    done = subprocess.run([sys.executable, *program.argv], cwd=there, check=True, stdout=subprocess.PIPE)
    assert done.stdout == b"shipped\n"
