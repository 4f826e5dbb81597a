"""Patterns as in .gitignore: what they match, as git has it; none takes long; what is wrong is said with its place."""

from __future__ import annotations

import itertools
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.launcher import Launcher
from tflaunch.code.bundle import bundle
from tflaunch.inputs.patterns import Pattern, Wanted, ignore_lines, is_git, translated

NAMES = st.sampled_from(["a", "b", ".a", "ab", "a.b", "-", "]", "[", "aab", "A", "1", "a b", "..a", "\\"])
PATHS = st.lists(NAMES, min_size=1, max_size=4).map("/".join)
PARTS = st.sampled_from(
    [
        "a", "b", "*", "**", "?", ".*", ".a", "*a", "a*", "*a*b", "a**b", "[ab]", "[!a]*", "[^.]a", "[]-]", "[a-c]",
        "[[:alpha:]]", "[[:digit:]x]*", "[!]a]", "\\a", "a\\*", "[.]a", "?a", "*.*", "[\\]]", "-", "a b",
        "[z-a]", "[z-a]*", "[!z-a]", "[z-ab]b", "a[[:no:]]", "[a[:no:]]*",
    ]
)  # fmt: skip
GLOBS = st.tuples(
    st.sampled_from(["", "/"]),
    st.lists(PARTS, min_size=1, max_size=5).map("/".join),
    st.sampled_from(["", "/"]),
).map("".join)


def regex(glob: str, *, dots: bool = True, below: bool = True) -> re.Pattern[str]:
    return re.compile(translated(glob, dots=dots, below=below), re.DOTALL)


@pytest.mark.skipif(shutil.which("git") is None, reason="compares with git")
@settings(deadline=None)
@given(globs=st.sets(GLOBS, min_size=1, max_size=6), paths=st.sets(PATHS, min_size=1, max_size=20))
def test_a_line_speaks_of_what_git_takes_it_for(globs: set[str], paths: set[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["git", "init", "-q", folder], check=True)
        for glob in sorted(globs):
            Path(folder, ".git/info/exclude").write_text(glob)
            asked = subprocess.run(
                ["git", "-C", folder, "check-ignore", "--no-index", "-z", "--stdin"],
                input="\0".join(sorted(paths)),
                stdout=subprocess.PIPE,
                text=True,
                check=False,
            )
            assert asked.returncode in (0, 1)
            [line] = ignore_lines([glob]) or [None]

            def ignored(path: str, line: object = line) -> bool:
                names = path.split("/")
                places = ["/".join(names[: number + 1]) for number in range(len(names))]
                return line is not None and any(line.matches(place, place != path) for place in places)  # type: ignore[attr-defined]

            assert {path for path in paths if ignored(path)} == set(asked.stdout.split("\0")) - {""}, glob


def plainly(parts: list[str], names: list[str]) -> bool:
    """Whether a pattern in parts matches a path, its wildcards no leading dot; each way is tried."""
    if not parts:
        return all(not name.startswith(".") for name in names)  # all that is below
    if parts[0] == "**":
        if parts == ["**"]:
            return bool(names) and plainly([], names)
        return plainly(parts[1:], names) or (
            bool(names) and not names[0].startswith(".") and plainly(parts, names[1:])
        )
    if not names or (names[0].startswith(".") and not parts[0].startswith(".")):
        return False
    if not re.fullmatch(parts[0].replace(".", r"\.").replace("*", ".*"), names[0]):
        return False
    return (parts != ["*"] or not names[1:]) and plainly(parts[1:], names[1:])


@given(
    parts=st.lists(st.sampled_from(["**", "*", "a", ".a", ".*", "a*", "*a", "*.*"]), min_size=2, max_size=5),
    path=PATHS,
)
def test_wildcards_match_no_leading_dot(parts: list[str], path: str) -> None:
    parts = [part for part, _ in itertools.groupby(parts)] if "**" in parts else parts
    if parts == ["**"]:
        return
    assert bool(regex("/" + "/".join(parts), dots=False).match(path)) == plainly(parts, path.split("/"))


@pytest.mark.parametrize(
    ("pattern", "come", "stay"),
    [
        ("**", {"a", "a/b"}, {".a", "a/.b", ".a/b"}),
        ("*", {"a", "a/b"}, {".a", "a/.b"}),
        ("*.txt", {"a.txt", "b/a.txt"}, {".txt", ".b/a.txt", ".a.txt"}),
        ("results", {"results/a", "x/results/a/b"}, {"results/.a", ".x/results"}),
        ("results/*.txt", {"results/a.txt"}, {".git/hooks/x", "results/.a.txt", "x/results/a.txt"}),
        (".cache/**", {".cache/a", ".cache/a/b"}, {".cache/.b", "a/.cache/b"}),
        (".*", {".a", ".a/b", "a/.b"}, {"a", ".a/.b", ".git", ".git/config", ".GIT/config"}),
        ("**/.*/**", {".a/b"}, {".a", ".git/hooks/x", "a/.git/hooks/x"}),
        ("?cache", {"acache"}, {".cache"}),
        ("[.]cache", set(), {".cache"}),
        ("__pycache__", set(), {"__pycache__/a.pyc"}),
    ],
)
def test_what_comes_for_a_pattern(pattern: str, come: set[str], stay: set[str]) -> None:
    wanted = Wanted([Pattern.parse(pattern)])
    assert {path for path in come | stay if wanted.says(path)} == come


def test_what_is_taken_away_is_so_with_its_dots() -> None:
    wanted = Wanted([Pattern.parse(text) for text in ("**", ".*", "!*.tmp")])
    assert [wanted.says(path) for path in ("a.tmp", ".x/a.tmp", ".x/.tmp", ".x/a")] == [
        False,
        False,
        False,
        True,
    ]


def test_no_pattern_takes_long() -> None:
    # With regular expressions that go back, each of these runs for minutes to years.
    stars = [
        "*a" * 50 + "*b",
        "**/" * 60 + "b",
        "**/*a*a*a*a*a*a*a*b/**/c",
        "?*" * 60 + "b",
        "**/a/" * 40 + "b",
    ]
    names = ["a" * 200, "a/" * 100 + "a", "a" * 255 + "/" + "a" * 255, "a/" * 2000 + "a"]
    for dots, below, glob, name in itertools.product((True, False), (True, False), stars, names):
        assert not regex(glob, dots=dots, below=below).match(name)


def test_what_git_takes_for_its_own_directory() -> None:
    for name in (
        ".git",
        ".GIT",
        ".gIt ",
        ".git.",
        "git~1",
        "GIT~1",
        ".g\u200cit",
        "\ufeff.git",
        ".git::$DATA",
        "x\\.git",
    ):
        assert is_git(name), name
    for name in ("git", ".gitignore", "agit", "git~", ".git~1", "x.git"):
        assert not is_git(name), name


WRONG = [
    ("[z-a]*", "it holds the range z-a, whose ends are the wrong way round"),
    ("a/[[:nonsense:]]", "it holds [:nonsense:], which is no class"),
    ("x\\", "it ends with a backslash that quotes nothing"),
    (".git/hooks/*", "it is never fetched: git runs what lies there"),
    ("**/.GIT", "it is never fetched: git runs what lies there"),
    ("", "it is no pattern"),
    ("#x", "it is no pattern"),
]


@pytest.mark.parametrize(("pattern", "sentence"), WRONG)
def test_a_bad_pattern_is_told_before_anything_is_contacted(
    pattern: str, sentence: str, launcher: Launcher
) -> None:
    trainer = launcher.script("")
    hosts = launcher.hostfile(["nowhere.invalid"])
    done = launcher.run("run", hosts, trainer, f"--fetch={pattern}").ran(2)
    assert f"--fetch {pattern}: {sentence}" in done.sentences
    if pattern != WRONG[0][0]:
        return
    done = launcher.run("fetch", "no-such-run", "-H", str(hosts), "--", pattern).ran(2)
    assert f"{pattern}: {sentence}" in done.sentences
    done = launcher.run("sweep", "--grid=a=1,2", hosts, trainer, f"--fetch=a/{pattern}").ran(2)
    assert f"--fetch a/{pattern}: {sentence}" in done.sentences


def test_a_bad_pattern_in_a_job_file_is_told_with_its_place(launcher: Launcher) -> None:
    launcher.script("")
    job = launcher.code / "job.yaml"
    job.write_text("program: trainer.py\nfetch:\n  - results/*\n  - '[z-a]*'\n")
    done = launcher.run("run", launcher.hostfile(["nowhere.invalid"]), job).ran(2)
    assert f"{job}:4:5: fetch: '[z-a]*' holds the range z-a" in done.sentences


def test_a_bad_line_in_an_ignore_file_is_told_with_its_place_and_stops_nothing(launcher: Launcher) -> None:
    trainer = launcher.script("")
    ignore = launcher.code / "lib/.gitignore"
    ignore.parent.mkdir()
    ignore.write_text("*.log\n\n!data[9-0]/\na[[:nonsense:]]\n")
    done = launcher.run("run", launcher.local(1), trainer, "--ps=0").ran()
    assert f"{ignore}:3:1: '!data[9-0]/' holds the range 9-0" in done.sentences
    assert "as in git, that range is empty" in done.sentences
    assert f"{ignore}:4:1: 'a[[:nonsense:]]' holds [:nonsense:], which is no class" in done.sentences
    assert "as in git, the line matches nothing" in done.sentences


def test_an_ignore_file_full_of_stars_holds_nothing_up(tmp_path: Path) -> None:
    (tmp_path / ".gitignore").write_text("*a" * 40 + "*b\n" + "**/*a" * 30 + "/b\n")
    deep = tmp_path / "/".join(["a" * 200] * 5)
    deep.mkdir(parents=True)
    (deep / ("a" * 250)).write_text("")
    assert bundle(tmp_path).files == 2


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("run --worker-hosts=[z", "'[z'"),
        ("run --ps-hosts=nobody*", "'nobody*'"),
        ("run --job=data=1 --job-hosts=data=gpu[9-1]", "'gpu[9-1]'"),
        ("run --restarts=1 --spares=nobody", "no host nobody"),
        ("run --only=worker", "worker"),
        ("run --include=nowhere.invalid:x", "--include nowhere.invalid:x"),
        ("run --exclude=[z", "'[z'"),
        ("sweep --grid=a=1 --exclude=nobody", "no host nobody"),
        ("sweep --grid=a=1 --metric=loss:([0-9", "--metric loss:([0-9"),
        ("up --worker-hosts=nobody", "no host nobody"),
        ("up --include=nobody:0", "no host nobody"),
        ("logs x --grep=[z-a]", "--grep [z-a]"),
        ("attach x --grep=(", "--grep ("),
        ("logs x worker", "worker"),
    ],
)
def test_every_other_pattern_is_read_before_anything_is_contacted(
    words: str, named: str, launcher: Launcher
) -> None:
    verb, *options = words.split()
    hosts = launcher.hostfile(["nowhere.invalid"])
    where: tuple[str | Path, ...] = (hosts, launcher.script(""))
    if verb in ("logs", "attach"):
        where = ("-H", hosts)
    done = launcher.run(verb, *options, *where[: 1 if verb == "up" else 2]).ran(2)
    assert named in done.sentences
