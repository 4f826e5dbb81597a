"""The user's code: finding the program, what of its directory is shipped, and that it is always the same."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tflaunch.agent.files.code_store import CodeStore
from tflaunch.code.bundle import Bundle, bundle
from tflaunch.code.program import find_program
from tflaunch.code.shipping import frames
from tflaunch.protocol import wire
from tflaunch.protocol.errors import EXIT_USAGE, UsageError

NOBODY = 65534


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
    store = CodeStore(str(directory.with_name("store")), packed.digest)
    lacks = store.lacks(packed.manifest, last=True)
    if lacks:
        for message in wire.Decoder().feed(b"".join(frames(packed, lacks))):
            store.add(message.body, message["packed"], message["last"])
    directory.mkdir()
    store.copy_to(str(directory))
    return directory


# --- which program ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "directory", "argv"),
    [
        ("trainer.py", ".", ("trainer.py",)),
        ("sub/train.py", "sub", ("train.py",)),
        ("sub/../trainer.py", ".", ("trainer.py",)),
        ("-weird.py", ".", ("./-weird.py",)),
        ('it\'s a "test" $HOME.py', ".", ('it\'s a "test" $HOME.py',)),
        ("link.py", "sub", ("train.py",)),  # as Python itself finds what it imports
        ("no_suffix", ".", ("no_suffix",)),
    ],
)
def test_scripts(tmp_path: Path, target: str, directory: str, argv: tuple[str, ...]) -> None:
    grow(tmp_path, dict.fromkeys(["trainer.py", "-weird.py", 'it\'s a "test" $HOME.py', "no_suffix"], ""))
    grow(tmp_path, {"sub/train.py": "", "sub/helper.py": ""})
    (tmp_path / "link.py").symlink_to("sub/train.py")
    program = find_program(target, False, tmp_path)
    assert (program.directory, program.argv) == ((tmp_path / directory).resolve(), argv)
    assert (program.directory / program.file).is_file()
    absolute = find_program(str(tmp_path / target), False, Path("/"))
    assert absolute == program


def test_a_script_below_the_directory_to_ship(tmp_path: Path) -> None:
    grow(tmp_path, {"pkg/bin/-t.py": "", "pkg/lib.py": "", "-d/t.py": ""})
    program = find_program("pkg/bin/-t.py", False, tmp_path, root=Path("pkg"))
    assert (program.directory, program.argv) == (tmp_path / "pkg", ("bin/-t.py",))
    assert find_program("-d/t.py", False, tmp_path, root=tmp_path).argv == ("./-d/t.py",)
    with pytest.raises(UsageError, match=r"t\.py is not in .*pkg, the directory to ship"):
        find_program("-d/t.py", False, tmp_path, root=tmp_path / "pkg")
    with pytest.raises(UsageError, match="there is no such directory to ship"):
        find_program("-d/t.py", False, tmp_path, root=tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("target", "message", "hint"),
    [
        ("trainr.py", "trainr.py: there is no such file", "Did you mean trainer.py?"),
        ("sub/tran.py", "sub/tran.py: there is no such file", "Did you mean sub/train.py?"),
        ("trainer", "trainer: there is no such file", "Did you mean trainer.py?"),
        ("wibble.py", "wibble.py: there is no such file in", "Name a Python script."),
        ("nowhere/t.py", "nowhere/t.py: there is no directory", "Correct the path of the script."),
        ("trainer.py/t.py", "trainer.py/t.py: there is no directory", "Correct the path of the script."),
        ("sub.train", "sub.train: there is no such file", "To run the module: -m sub.train"),
        ("sub", "sub: a directory, not a script", "Name one of its scripts: sub/train.py"),
        ("runs", "runs: a directory, not a script", "To run it as a module: -m runs"),
        ("data", "data: a directory, not a script, and no .py or .sh file is in it", "Name a script."),
        ("", "the command names no program", "Name a Python script"),
        ("pipe", "pipe: not a regular file", "Name a Python script."),
        ("/dev/null", "/dev/null: not a regular file", "Name a Python script."),
        ("x" * 300, "File name too long", "Name a Python script"),
        ("loop.py", "Too many levels of symbolic links", "Name a Python script"),
    ],
)
def test_no_such_script(tmp_path: Path, target: str, message: str, hint: str) -> None:
    grow(tmp_path, {"trainer.py": "", "sub/train.py": "", "runs/__main__.py": "", "data/x.csv": ""})
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop.py").symlink_to("loop.py")
    with pytest.raises(UsageError) as raised:
        find_program(target, False, tmp_path)
    assert message in raised.value.message
    assert raised.value.hint.startswith(hint)


@pytest.mark.parametrize(
    ("name", "file"),
    [("train", "train.py"), ("pkg.mod", "pkg/mod.py"), ("pkg.run", "pkg/run/__main__.py")],
)
def test_modules(tmp_path: Path, name: str, file: str) -> None:
    grow(tmp_path, {"train.py": "", "pkg/__init__.py": "", "pkg/mod.py": "", "pkg/run/__main__.py": ""})
    program = find_program(name, True, tmp_path)
    assert (program.directory, program.argv, program.file) == (tmp_path, ("-m", name), file)
    assert find_program(name, True, Path("/"), root=tmp_path) == program


@pytest.mark.parametrize(
    ("name", "message", "hint"),
    [
        (
            "pkg.mud",
            "-m pkg.mud: neither pkg/mud.py nor pkg/mud/__main__.py is in",
            "Did you mean -m pkg.mod?",
        ),
        ("other.thing", "-m other.thing: neither other/thing.py", "Start tflaunch in the directory"),
        ("pkg", "/pkg is a package without __main__.py", "Name one of its modules, -m pkg.MODULE"),
        ("pkg/mod.py", "-m pkg/mod.py: not the name of a module", "Did you mean -m pkg.mod?"),
        ("pkg.mod.py", "-m pkg.mod.py: not the name of a module", "Did you mean -m pkg.mod?"),
        ("..up", "-m ..up: not the name of a module", "Write it with dots"),
        ("", "-m : not the name of a module", "Write it with dots"),
    ],
)
def test_no_such_module(tmp_path: Path, name: str, message: str, hint: str) -> None:
    grow(tmp_path, {"pkg/__init__.py": "", "pkg/mod.py": ""})
    with pytest.raises(UsageError) as raised:
        find_program(name, True, tmp_path)
    assert message in raised.value.message
    assert raised.value.hint.startswith(hint)


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


NAMES = st.sampled_from(["a", "b", "foo", "build", "x.py", "y.log", "z.txt"])
LINES = st.sampled_from(
    [
        "*.log", "build/", "/build", "foo/", "foo/*", "foo/**", "**/foo", "a/**/b", "!y.log", "!foo/", "/",
        "!foo/x.py", "!/a", "/*", "!*.py", "*", "!*/", "a/", "!a/b/", "**/", "[ab]", "[!a]", "?", "*.t?t",
        "# c", "", "foo", "x.*", "a/*/x.py", "**/*.py", "!", "z.txt ", "/foo/**/y.log", "\\#x", "y.log\\",
        "fo[o", "!foo", "b/**/", "[z-a]", "[!z-a]", "[z-af]oo", "fo[[:no:]]", "![[:no:]]*",
    ]
)  # fmt: skip
PATHS = st.lists(NAMES, min_size=1, max_size=4).map("/".join)


IGNORES = st.dictionaries(
    st.one_of(st.just("."), PATHS), st.lists(LINES, min_size=1, max_size=4), min_size=1, max_size=3
)


def work_tree(folder: str, paths: set[str]) -> Path:
    root = Path(folder).resolve()
    subprocess.run(["git", "init", "-q", root], check=True)
    for path in sorted(paths, reverse=True):  # the longest first: a shorter one may be its directory
        if not (root / path).exists() and not any((root / p).is_file() for p in Path(path).parents):
            grow(root, {path: ""})
    return root


def seen_by_git(root: Path, *excluding: str) -> set[str]:
    listing = ["git", "-C", str(root), "ls-files", "-z", "--others", *excluding]
    seen = subprocess.run(listing, check=True, stdout=subprocess.PIPE).stdout
    return {os.fsdecode(name) for name in seen.split(b"\0") if name}


@pytest.mark.skipif(shutil.which("git") is None, reason="compares with git")
@pytest.mark.parametrize("name", [".gitignore", ".tflaunchignore"])
@settings(deadline=None, max_examples=60)  # git is another process, on a busy machine
@given(paths=st.sets(PATHS, min_size=1, max_size=20), ignores=IGNORES)
def test_git_sees_the_same_files(name: str, paths: set[str], ignores: dict[str, list[str]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = work_tree(folder, paths)
        for path, lines in ignores.items():
            if (root / path).is_dir():
                grow(root, {f"{path}/{name}": "\n".join(lines)})
        assert files(bundle(root)) == seen_by_git(root, f"--exclude-per-directory={name}")


@pytest.mark.skipif(shutil.which("git") is None, reason="compares with git")
@settings(deadline=None, max_examples=30)
@given(
    paths=st.sets(PATHS, min_size=1, max_size=20),
    lines=st.lists(LINES, max_size=4),
    more=st.lists(LINES, max_size=4),
)
def test_a_tflaunchignore_is_read_after_the_gitignore_beside_it(
    paths: set[str], lines: list[str], more: list[str]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = work_tree(folder, paths)
        grow(root, {".gitignore": "\n".join(lines), ".tflaunchignore": "\n".join(more)})
        packed = files(bundle(root))
        grow(root, {".gitignore": "\n".join([*lines, *more])})
        assert packed == seen_by_git(root, "--exclude-standard")


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


def links(packed: Bundle) -> dict[str, str]:
    return {name: str(entry[1]) for name, entry in members(packed).items() if entry[0] == "l"}


def content(packed: Bundle, name: str) -> bytes:
    return packed.contents[str(members(packed)[name][1])]


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


# --- secrets


KEY = "-----BEGIN OPENSSH PRIVATE KEY-----\nc2VjcmV0\n-----END OPENSSH PRIVATE KEY-----\n"
SERVICE = '{\n "type": "service_account",\n "private_key": "-----BEGIN PRIVATE KEY-----\\n"}'


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (".ssh/config", ""),
        (".aws/credentials", ""),
        ("deep/in/.gnupg/pubring.kbx", ""),
        (".kube/config", ""),
        (".netrc", ""),
        (".docker/config.json", "{}"),
        (".git-credentials", ""),
        (".pypirc", ""),
        (".env", "A=1"),
        ("conf/.env.production", "A=1"),
        (".config/gcloud/credentials.db", ""),
        (".azure/accessTokens.json", ""),
        ("kaggle.json", "{}"),
        (".huggingface/token", ""),
        (".cache/huggingface/token", ""),
        ("deploy", KEY),
        ("conf/key.txt", "\n" + KEY),
        ("a.pem", KEY.replace("OPENSSH", "RSA")),
        ("a.key", "Bag Attributes\n    friendlyName: me\n" + KEY.replace("OPENSSH ", "")),
        (
            "both.pem",
            "-----BEGIN CERTIFICATE-----\nx\n-----END CERTIFICATE-----\n" + KEY.replace("OPENSSH", "EC"),
        ),
        ("gpg.asc", "-----BEGIN PGP PRIVATE KEY BLOCK-----\n"),
        ("windows.key", "-----BEGIN ENCRYPTED PRIVATE KEY-----\r\n"),
        ("mine.ppk", ""),
        ("mine.txt", "PuTTY-User-Key-File-3: ssh-ed25519\n"),
        ("age.txt", "# created: 2024\n# public key: age1\nAGE-SECRET-KEY-1XX\n"),
        ("gcp.json", SERVICE),
        (
            "adc",
            SERVICE.replace("service_account", "authorized_user").replace("private_key", "refresh_token"),
        ),
        (".npmrc", "//registry.npmjs.org/:_authToken=x\n"),
        (".envrc", "export A=1\n"),
    ],
)
def test_a_secret_is_named_and_stays_here_unless_it_is_asked_for(
    tmp_path: Path, name: str, text: str
) -> None:
    grow(tmp_path, {"trainer.py": "", name: text})
    packed = bundle(tmp_path)
    assert files(packed) == {"trainer.py"}
    [secret] = packed.secrets
    assert f"{name}/".startswith(secret.path.rstrip("/") + "/")
    assert secret.why
    assert files(bundle(tmp_path, ship=[name])) == {"trainer.py", name}
    assert files(bundle(tmp_path, ship=[str(tmp_path / name)])) == {"trainer.py", name}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (".env.example", "A="),
        (".env.sample", "A="),
        (".env.template", "A="),
        ("docker/config.json", "{}"),
        ("id_rsa.pub", "ssh-rsa AAAA"),
        ("ca.pem", "-----BEGIN CERTIFICATE-----\n"),
        ("test_keys.py", f'KEY = """\n{KEY}"""\n'),
        ("key.py", "# -----BEGIN RSA PRIVATE KEY-----\n"),
        ("types.json", '{"type": "service_account"}'),
        (".npmrc", "registry=https://example.org\n"),
        (".config/app.json", "{}"),
        ("credentials.py", ""),
        ("huggingface/model.py", ""),
        (".envs/a.py", ""),
    ],
)
def test_what_only_looks_like_a_secret_is_shipped(tmp_path: Path, name: str, text: str) -> None:
    grow(tmp_path, {name: text})
    assert (files(bundle(tmp_path)), bundle(tmp_path).secrets) == ({name}, ())


def test_a_directory_that_is_asked_for_comes_without_its_secrets(tmp_path: Path) -> None:
    grow(
        tmp_path,
        {
            ".gitignore": "out/\n",
            "out/a": "",
            "out/.env": "",
            "out/deep/b": "",
            ".ssh/config": "",
            ".ssh/k": KEY,
        },
    )
    packed = bundle(tmp_path, ship=["out", ".ssh", "out/deep/"])
    assert files(packed) == {".gitignore", "out/a", "out/deep/b", ".ssh/config"}
    assert {secret.path for secret in packed.secrets} == {"out/.env", ".ssh/k"}
    assert files(bundle(tmp_path, ship=["out/deep/b"])) == {".gitignore", "out/deep/b"}


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("nowhere", "--ship nowhere: there is no such file in"),
        ("../code2/x", "--ship ../code2/x: it is not in"),
        ("/etc/passwd", "--ship /etc/passwd: it is not in"),
        (".", "--ship .: that is all of"),
        ("", "--ship : that is all of"),
        ("sub/..", "that is all of"),
        ("out/x", "--ship out/x: a link leads out of"),
    ],
)
def test_what_cannot_be_asked_for(tmp_path: Path, path: str, message: str) -> None:
    code = grow(tmp_path, {"code/trainer.py": "", "code/sub/": "", "code2/x": ""}) / "code"
    (code / "out").symlink_to("../code2")
    with pytest.raises(UsageError) as raised:
        bundle(code, ship=[path])
    assert message in raised.value.message
    assert raised.value.exit_code == EXIT_USAGE


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
    grow(tmp_path / "code", {f"{number}/{number}.py": str(number) * (number % 40) for number in range(900)})
    (tmp_path / "code/large").write_bytes(os.urandom(1 << 20))
    packed = bundle(tmp_path / "code")
    places = [place for place, entry in enumerate(packed.entries) if entry[1] in ("f", "x")]
    messages = wire.Decoder().feed(b"".join(frames(packed, places)))
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
