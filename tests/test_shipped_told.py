"""What is shipped is told, with how much of it and what stays here; what fetch brought is none of it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.launcher import Launcher
from tests.sshd import SshNetwork
from tests.test_sources import KEY, files, grow, links
from tflaunch.code import fetched_mark
from tflaunch.code.bundle import bundle, code_of
from tflaunch.code.program import find_program
from tflaunch.code.shipping import Shipped
from tflaunch.console.code_page import own_code, shipped_text, summary
from tflaunch.hosts import load
from tflaunch.protocol.errors import FetchError
from tflaunch.runs.fetch_destination import Destination

MARK = fetched_mark.NAME


def bring(directory: Path, *paths: str, come: bool = True) -> Destination:
    """As fetch does, of files that are not here."""
    destination = Destination(directory)
    destination.mark(paths)
    for path in paths if come else ():
        with destination.beside(path) as (folder, name):
            os.close(os.open(name, os.O_CREAT | os.O_WRONLY, dir_fd=folder))
    destination.settle(paths if come else ())
    return destination


def named(directory: Path) -> set[str] | None:
    names = fetched_mark.read(str(directory))
    return None if names is None else set(names)


# ---- the mark


def test_a_directory_that_fetch_makes_is_marked_with_those_it_makes_above(tmp_path: Path) -> None:
    bring(tmp_path / "results/run1", "checkpoints/a", "b")
    assert [named(tmp_path / name) for name in ("results", "results/run1")] == [set(), set()]
    assert [named(tmp_path), named(tmp_path / "results/run1/checkpoints")] == [None, None]
    bring(tmp_path / "results/run1", "c")  # again
    assert named(tmp_path / "results/run1") == set()
    bring(tmp_path / "nothing/at/all", "a", come=False)
    assert not (tmp_path / "nothing").exists()


def test_in_a_directory_of_the_user_s_the_names_are_marked(tmp_path: Path) -> None:
    grow(tmp_path, {"trainer.py": "", "config.json": "mine", "pkg/a.py": "", "logs/": ""})
    bring(tmp_path, "checkpoints/deep/a", "checkpoints/b", "metrics.csv", "logs/one", "pkg/new.py")
    assert named(tmp_path) == {"checkpoints/", "metrics.csv", "logs/one", "pkg/new.py"}
    # What was to come and did not is not named; one that was replaced is.
    destination = Destination(tmp_path)
    destination.mark(["config.json", "metrics.csv", "never", "more/never"])
    assert named(tmp_path) == {"checkpoints/", "metrics.csv", "logs/one", "pkg/new.py", "never", "more/"}
    destination.settle(["config.json"])
    assert named(tmp_path) == {"checkpoints/", "metrics.csv", "logs/one", "pkg/new.py", "config.json"}
    alone = grow(tmp_path / "alone", {"a": ""})
    bring(alone, "b", come=False)
    assert named(alone) is None
    assert not [path for path in tmp_path.rglob("*") if fetched_mark.is_part(path.name)]


def test_two_fetches_to_one_directory_name_what_both_brought(tmp_path: Path) -> None:
    grow(tmp_path, {"trainer.py": ""})
    one, two = Destination(tmp_path), Destination(tmp_path)
    one.mark(["a", "x"])
    two.mark(["b", "y"])
    grow(tmp_path, {"a": "", "b": ""})
    one.settle(["a"])
    two.settle(["b"])
    assert named(tmp_path) == {"a", "b"}


def test_the_mark_is_never_written_through_a_link_and_no_link_is_one(tmp_path: Path) -> None:
    code = grow(tmp_path / "code", {"trainer.py": "", "a": "", "sub/b": ""})
    outside = grow(tmp_path, {"outside": "/a\n", "all": "# all\n"}) / "outside"
    (code / MARK).symlink_to(outside)
    (code / "sub" / MARK).symlink_to(tmp_path / "all")
    assert files(bundle(code)) == {"trainer.py", "a", "sub/b"}
    bring(code, "c")
    assert (outside.read_text(), (code / MARK).is_symlink(), named(code)) == ("/a\n", False, {"c"})
    (code / MARK).unlink()
    (code / MARK).mkdir()
    with pytest.raises(FetchError, match=rf"cannot write to {code}/{MARK}: Is a directory"):
        Destination(code).mark(["d"])
    (code / MARK).rmdir()
    os.mkfifo(code / MARK)
    assert named(code) is None


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


def test_a_run_tells_what_it_ships_and_does_not_ship_what_it_fetched(launcher: Launcher) -> None:
    text = """
        import os, pathlib, sys
        print("HAS", sorted(os.listdir()))
        pathlib.Path("checkpoints").mkdir(exist_ok=True)
        pathlib.Path("checkpoints/a").write_text("1")
        pathlib.Path("metrics.csv").write_text("2")
    """
    script, hosts = launcher.script(text), launcher.local(2)
    grow(launcher.code, {".env": "A=1", "a.log": "", ".gitignore": "*.log\n", "data/x": ""})
    (launcher.code / "elsewhere").symlink_to(launcher.home)
    grow(launcher.home, {"there": ""})
    words = ("run", hosts, script, "--ps=0", "--workers=2", "--no-flags", "--fetch=**")
    done = launcher.run(*words).ran()
    first = launcher.records()[0].name
    own = {".gitignore", "data", "elsewhere", "trainer.py"}
    assert f"HAS {sorted(own)}" in done.out
    about = f"of {launcher.code} (1 left out by .gitignore, 1 secret"
    [line] = [line for line in done.err.splitlines() if about in line]
    assert line.startswith("✓ shipped 3 files, ")
    assert line.endswith("1 secret)")
    assert "--env-file .env gives the tasks its variables" in done.sentences
    assert f"shipped as links: elsewhere -> {launcher.home}" in done.sentences
    assert (launcher.code / first / "elsewhere").exists() is False
    assert "left out: local1:elsewhere: a link" in done.sentences

    done = launcher.run(*words, "--fetch-to=.").ran()
    assert f"HAS {sorted(own)}" in done.out
    assert "1 secret, 1 fetched): already there" in done.sentences
    assert (
        f"fetched before, so not shipped: {first}/; --ship {first} ships that one all the same"
        in done.sentences
    )
    assert named(launcher.code) == {"checkpoints/", "metrics.csv"}

    events = launcher.run(*words[:-1], "--ship=checkpoints", "--json").ran().events
    [code] = [event for event in events if event["event"] == "code"]
    assert set(code["fetched"]) == {f"{first}/", "metrics.csv"}
    [shipped] = [event for event in events if event["event"] == "shipped"]
    assert (shipped["digest"], shipped["files"]) == (code["digest"], 4)
    assert shipped["sent"] == {"local1": [1, 1], "local2": [1, 1]}
    assert any(f"HAS {sorted({*own, 'checkpoints'})}" in event.get("line", "") for event in events)

    # A sweep's outputs are no code either.
    sweep = ("sweep", hosts, script, "--grid=a=1,2", "--fetch=**", "--name=tried")
    assert "3 files, " in launcher.run(*sweep).ran().sentences
    [tried] = launcher.code.glob("tried-*")
    assert named(tried) == set()
    done = launcher.run(*words[:-1]).ran()
    assert f"HAS {sorted(own)}" in done.out
    assert "4 fetched): already there" in done.sentences


def test_a_file_of_the_user_s_is_not_replaced_since_the_hosts_begins_alike(
    launcher: Launcher, network: SshNetwork
) -> None:
    script = launcher.script("import pathlib\npathlib.Path('pkg.py').write_text('evil')\n")
    mine = grow(launcher.directory / "to", {"pkg.py": ""}) / "pkg.py"  # empty, as many an __init__.py
    words = ("run", launcher.hostfile([network.add().name]), script, "--ps=0", "--fetch=*.py")
    done = launcher.run(*words, f"--fetch-to={mine.parent}").ran(74)
    assert mine.read_text() == ""
    assert "kept here, though their content differs (1; --overwrite replaces them): pkg.py" in done.sentences
    launcher.run(*words, f"--fetch-to={mine.parent}", "--overwrite").ran()
    assert (mine.read_text(), named(mine.parent)) == ("evil", {"pkg.py"})


@pytest.mark.parametrize("verb", ["run", "sweep"])
def test_all_files_are_listed_each_with_its_size_or_why_it_stays(launcher: Launcher, verb: str) -> None:
    script = launcher.script("")
    grow(
        launcher.code, {".env": "A=1", "a.log": "", ".gitignore": "*.log\n", "x/y": "1" * 3000, "p\x1bq": ""}
    )
    bring(launcher.code / "old", "a")
    os.mkfifo(launcher.code / "pipe")
    more = ("--ps=0",) if verb == "run" else ("--grid=a=1",)
    words = (verb, launcher.local(1), script, *more, "--dry-run", "--show-files")
    rows = [" ".join(line.split()) for line in launcher.run(*words).ran().out.splitlines()]
    assert rows[0].startswith("to ship: 4 files, ")
    assert "\x1b" not in "".join(rows)
    at = rows.index("left out:")
    assert {"6 B .gitignore", "2.9 KiB x/y", "x/", "0 B trainer.py"} <= set(rows[1:at])
    assert {
        ".env a secret: variables, mostly passwords and tokens",
        "a.log .gitignore:1: *.log",
        "old/ it was fetched from hosts",
        "pipe neither a file nor a directory",
    } <= set(rows[at:])
    [code] = [event for event in launcher.run(*words, "--json").ran().events if event["event"] == "code"]
    assert {"path": "x/y", "kind": "file", "bytes": 3000, "goal": None} in code["shipped"]
    assert {"path": "a.log", "kind": "ignored", "why": ".gitignore:1: *.log"} in code["left"]
    assert "add --dry-run" in launcher.run(*words[:-2], "--show-files").ran(2).sentences


def test_more_than_100_mib_is_shipped_where_that_is_asked_for(launcher: Launcher) -> None:
    script = launcher.script("import os\nprint('LARGE', os.stat('large').st_size)\n")
    with (launcher.code / "large").open("wb") as large:
        large.truncate(101 << 20)
    words = ("run", launcher.local(1), script, "--ps=0")
    done = launcher.run(*words).ran(2)
    assert "101.0 MiB to ship, 100.0 MiB is the limit" in done.sentences
    assert "--max-code SIZE ships more" in done.sentences
    assert f"LARGE {101 << 20}" in launcher.run(*words, "--max-code=102MiB").ran().out
    job = (
        grow(launcher.code, {"job.yaml": "program: trainer.py\nroles: {ps: 0}\nmax_code: 90MiB\n"})
        / "job.yaml"
    )
    assert "90.0 MiB is the limit" in launcher.run("run", launcher.local(1), job).ran(2).sentences
    sweep = ("sweep", launcher.local(1), script, "--grid=a=1", "--dry-run")
    assert "100.0 MiB is the limit" in launcher.run(*sweep).ran(2).sentences
    launcher.run(*sweep, "--max-code=1GiB").ran()
    done = launcher.run(*words, "--max-code=much").ran(2)
    assert "'much' is not an amount of data for --max-code" in done.sentences


def test_hosts_with_a_workdir_are_shipped_nothing_and_that_is_said(
    launcher: Launcher, tmp_path: Path
) -> None:
    script = launcher.script("import os; print('IN', os.getcwd())")
    hosts = launcher.hostfile([{"name": "local1", "connection": "local", "workdir": str(launcher.code)}])
    words = ("run", hosts, script.name, "--ps=0")
    done = launcher.run(*words).ran()
    said = f"no code is shipped to local1, where it is in {launcher.code} (`workdir:` in {hosts})"
    assert said in done.sentences
    assert "shipped 1 file" not in done.sentences
    assert f"IN {launcher.code}" in done.out
    assert "no code is shipped" not in launcher.run(*words, "--no-sync").ran().sentences
    files = launcher.run(*words, "--dry-run", "--show-files").ran(2)
    assert "--show-files: the code is on the hosts, nothing is shipped" in files.sentences


def test_links_to_directories_elsewhere_are_links_on_the_host(tmp_path: Path) -> None:
    code = grow(tmp_path / "code", {"trainer.py": ""})
    grow(tmp_path, {"datasets/big": "", "data/x": ""})
    (code / "data").symlink_to(tmp_path / "datasets")
    (code / "more").symlink_to("../data")
    packed = bundle(code)
    assert links(packed) == {"data": str(tmp_path / "datasets"), "more": str(tmp_path / "data")}
