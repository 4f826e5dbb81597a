"""`tflaunch clean`: what goes, what stays, and that nothing else is ever touched."""

from __future__ import annotations

import json
import os
import pty
import shutil
import signal
import subprocess
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agent_over_pipes import Host, interpreters, running, task
from tests.launcher import Done, Launcher, until
from tests.sshd import SshNetwork
from tests.test_stop import endless, kill
from tflaunch.agent.files import garbage
from tflaunch.inputs.times import seconds
from tflaunch.protocol import removal, wire
from tflaunch.protocol.code_manifest import digest_of
from tflaunch.protocol.errors import UsageError
from tflaunch.runs.clean import Criteria, Kept, Place, Selection, full_names, select

IS_ROOT = os.geteuid() == 0
DAY_S = 86400.0
GIB = 1 << 30

# ---- which runs go: pure


def kept(run: str, days: float, **fields: object) -> Kept:
    made = {
        **{"run_id": run, "bytes": GIB, "idle_s": days * DAY_S, "alive": False, "keep": "", "ended": True},
        **{"here": ("h1",), "hosts": ("h1",), **fields},
    }
    return Kept(**made)  # type: ignore[arg-type]


def place(*runs: Kept, name: str = "h1") -> Place:
    return Place((name,) if name else (), f"/var/tmp/{name}", runs)


def goes(chosen: Selection) -> dict[int, list[str]]:
    return {number: sorted(runs) for number, runs in chosen.goes.items()}


def test_what_is_older_goes_from_all_places_and_its_last_use_anywhere_counts() -> None:
    known = [
        place(kept("old", 20), kept("used", 20)),
        place(kept("used", 3), name="h2"),
        place(kept("old", 21), name=""),
    ]
    assert goes(select(known, Criteria(older_s=14 * DAY_S))) == {0: ["old"], 2: ["old"]}


def test_the_newest_stay_and_alone_that_means_all_others_go() -> None:
    known = [place(*(kept(f"run{days}", days) for days in range(5)))]
    assert goes(select(known, Criteria(keep_last=2))) == {0: ["run2", "run3", "run4"]}
    chosen = select(known, Criteria(older_s=0.0, keep_last=4))
    assert goes(chosen) == {0: ["run4"]}
    assert chosen.stays["run3"] == "it is one of the newest 4"


def test_by_size_the_oldest_go_and_only_where_it_is_too_much() -> None:
    known = [
        place(*(kept(f"run{days}", days) for days in range(5))),
        place(kept("run4", 4), kept("big", 1, bytes=9 * GIB), name="h2"),
        place(kept("alive", 9, alive=True, bytes=8 * GIB), name="h3"),
    ]
    chosen = select(known, Criteria(max_bytes=3 * GIB))
    assert goes(chosen) == {0: ["run3", "run4"], 1: ["big", "run4"]}
    assert dict(chosen.too_large) == {2: 5 * GIB}
    assert goes(select(known, Criteria(max_bytes=3 * GIB, keep_last=4))) == {0: ["run3", "run4"], 1: ["run4"]}


def test_a_run_that_is_alive_anywhere_stays_everywhere() -> None:
    known = [place(kept("run", 99)), place(kept("run", 99, alive=True, keep="it is alive"), name="h2")]
    for criteria in (Criteria(older_s=1.0), Criteria(runs=("run",)), Criteria(max_bytes=0)):
        chosen = select(known, criteria)
        assert not chosen.goes
        assert chosen.stays == {"run": "it is alive on h2"}


def test_a_run_that_may_be_alive_where_nobody_was_asked_stays() -> None:
    lost = kept("run", 99, ended=False, hosts=("h1", "h2", "h3"))
    chosen = select([place(lost)], Criteria(older_s=1.0))
    assert (chosen.goes, dict(chosen.stays)) == ({}, {"run": "it may be alive on h[2-3], not asked"})
    asked = [place(lost), Place(("h2", "h3"), "/", ())]
    assert goes(select(asked, Criteria(older_s=1.0))) == {0: ["run"]}
    ended = place(kept("run", 99, hosts=("h1", "h2", "h3")))
    assert goes(select([ended], Criteria(older_s=1.0))) == {0: ["run"]}


def test_what_must_stay_in_one_place_goes_from_the_others() -> None:
    known = [place(kept("run", 99, keep="/data is mounted in it")), place(kept("run", 99), name="h2")]
    chosen = select(known, Criteria(runs=("run",)))
    assert goes(chosen) == {1: ["run"]}
    assert chosen.stays == {"run": "h1: /data is mounted in it"}


def test_names_and_lengths_of_time() -> None:
    known = [place(kept("trainer-aa", 1), kept("trainer-ab", 1))]
    assert full_names(["trainer-ab", "trainer-aa"], known) == ("trainer-ab", "trainer-aa")
    for name in ("trainer-", "nobody"):
        with pytest.raises(UsageError):
            full_names([name], known)
    assert [seconds(text) for text in ("90s", "30m", "12h", "7d", "2w", "1.5d")] == [
        *(90, 1800, 43200, 604800, 1209600, 129600)
    ]
    for text in ("d", "-1d", "1y", "d7"):
        with pytest.raises(ValueError, match="is not a time"):
            seconds(text)


# ---- trees


def test_a_tree_is_removed_whatever_is_in_it(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "thesis").write_text("years")
    tree = tmp_path / "tree"
    (tree / "cache").mkdir(parents=True)
    (tree / "cache" / "read-only").write_text("")
    (tree / "to-a-file").symlink_to(precious / "thesis")
    (tree / "to-a-directory").symlink_to(precious)
    (tree / "to-nowhere").symlink_to("nowhere")
    os.mkfifo(tree / "fifo")
    (tree / b"\xff\n".decode("utf-8", "surrogateescape")).write_text("")
    (tree / "cache").chmod(0)
    here = Path.cwd()
    os.chdir(tree)  # a path so deep is too long for one call
    for _ in range(2000):
        os.mkdir("deeper")  # noqa: PTH102
        os.chdir("deeper")
    os.chdir(here)
    assert removal.remove(str(tree)) == []
    assert not tree.exists()
    assert (precious / "thesis").read_text() == "years"
    assert removal.remove(str(tree)) == []


def test_sizes_are_blocks_and_a_file_with_another_name_elsewhere_frees_nothing(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "data").write_bytes(b"x" * 1_000_000)
    os.link(tree / "data", tree / "again")
    with (tree / "sparse").open("wb") as sparse:
        sparse.truncate(1 << 40)
    alone = removal.Size(str(tree)).bytes
    blocks = sum(path.stat().st_blocks * 512 for path in (tree, tree / "data"))
    assert alone == blocks >= 1_000_000
    os.link(tree / "data", tmp_path / "elsewhere")
    assert alone - removal.Size(str(tree)).bytes >= 1_000_000
    assert removal.free(str(tree))[0] < 100_000


def test_a_date_that_has_not_come_yet_says_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path):
        os.utime(path, (0, time.time() + DAY_S if path.is_file() else 1000.0))
    assert removal.Size(str(tmp_path)).modified == 1000.0


def test_what_cannot_be_removed_is_told(tmp_path: Path) -> None:
    if not IS_ROOT:
        pytest.skip("only root can mount")
    (tmp_path / "tree" / "mounted").mkdir(parents=True)
    script = (
        f"mount -t tmpfs none {tmp_path}/tree/mounted && touch {tmp_path}/tree/mounted/file && "
        "python3 -c 'import sys; sys.path.insert(0, sys.argv[1]); from tflaunch.agent.files import garbage; "
        "from tflaunch.protocol import removal; "
        f'print(garbage._mounted("{tmp_path}/tree")); print(removal.remove("{tmp_path}/tree"))\' "$@"'
    )
    root = str(Path(garbage.__file__).parents[2])
    words = ["unshare", "--mount", "sh", "-c", script, "sh", root]
    told = subprocess.run(words, capture_output=True, text=True, check=False)
    if "mount" in told.stderr:
        pytest.skip(f"no mounts here: {told.stderr}")
    mounted, problems = told.stdout.splitlines()
    assert mounted == f"{tmp_path}/tree/mounted"
    assert "mounted: Device or resource busy" in problems


# ---- the agent, as it is shipped


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    """A host with the oldest Python that can be had."""
    host = Host(tmp_path, interpreters()[0])
    yield host
    host.close()


def old_run(host: Host, name: str, code: str | None = None, **agent: object) -> Path:
    """The directory of a run that ended long ago."""
    directory = host.parent / name / "h1"
    (directory / "logs").mkdir(parents=True)
    (directory / "logs" / "worker-0.log").write_bytes(b"x" * 100_000)
    about = {"pid": 1, "start": 1, "guard": 1, "guard_start": 1, "tasks": ["worker/0"], "over": True, **agent}
    (directory / "agent.json").write_text(json.dumps(about))
    (directory / "plan.json").write_text(json.dumps({"tasks": [], "code": code}))
    make_old(host.parent / name)
    return host.parent / name


def make_old(path: Path, days: float = 30) -> None:
    """As if nobody had touched it for so long."""
    then = time.time() - days * DAY_S
    for place, links, names in os.walk(path, topdown=False):
        for name in (*links, *names, ""):
            os.utime(os.path.join(place, name), (then, then), follow_symlinks=False)  # noqa: PTH118
    if path.is_file():
        os.utime(path, (then, then))


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
    whole = {*digests, part, "older.tar.gz"}
    all_of_it = {*digests, "shared", "half"}
    assert clean("first-aaaaaa", older_s=None) == (0, whole, all_of_it)
    assert clean("third-aaaaaa", older_s=None) == (2, whole - {"two"}, all_of_it - {"two"})
    all_of_it -= {"two", "half"}
    assert clean(older_s=DAY_S * 3) == (2, {"one", "unused", "fresh", "older.tar.gz"}, all_of_it)
    assert clean(older_s=DAY_S) == (3, {"one", "fresh"}, all_of_it - {"unused"})
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


# ---- the verb


@pytest.fixture
def hostfile(network: SshNetwork, launcher: Launcher) -> Path:
    """Two hosts, each with a disk of its own."""
    return launcher.hostfile([separate(launcher, network.add().name) for _ in range(2)])


def separate(launcher: Launcher, name: str) -> dict[str, str]:
    return {"name": name, "run_dir": str(launcher.hosts / name)}


def directories(launcher: Launcher, run: str) -> list[Path]:
    """Everything there is of a run: on the hosts, and the record."""
    return sorted([*launcher.hosts.glob(f"*/tflaunch-*/{run}"), *launcher.state.glob(run)])


def kept_bytes(launcher: Launcher, alive: str) -> int:
    """What all runs take but for one, which goes on writing, as does its agent: modules that it loads later."""
    kept = [*launcher.hosts.glob("*/tflaunch-*/*"), *launcher.state.iterdir()]
    modules = launcher.hosts.glob("*/tflaunch-*/code/agent-*")
    size = sum(removal.Size(str(path)).bytes for path in kept if path.name != alive)
    return size - sum(removal.Size(str(path)).bytes for path in modules)


def ended_run(launcher: Launcher, hostfile: Path, days: float = 0, text: str = "print('done')") -> str:
    """A run of two workers that has ended, as if so many days ago."""
    script = launcher.script(text)
    launcher.run("run", hostfile, script, "--ps=0", "--workers=2", "--done=all").ran()
    launcher.wait_until_nothing_is_left()  # its guards' last words make its directories new
    newest = max(launcher.records(), key=lambda path: path.stat().st_mtime)
    if days:
        for directory in directories(launcher, newest.name):
            make_old(directory, days)
    return newest.name


def test_old_new_and_alive(launcher: Launcher, hostfile: Path, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "thesis").write_text("years")
    link = f"import os; os.symlink({str(precious)!r}, 'data-%d' % os.getpid())"
    old = ended_run(launcher, hostfile, 30, link)
    new = ended_run(launcher, hostfile)
    with endless(launcher, hostfile) as running:
        alive = running.run_id
        for directory in directories(launcher, alive):
            make_old(directory)
        told = launcher.run("clean", "--hosts", hostfile, "--dry-run").ran()
        assert old in told.out
        assert "--dry-run: nothing was removed" in told.out
        assert len(directories(launcher, old)) == 3
        before = kept_bytes(launcher, alive)
        done = launcher.run("clean", "--hosts", hostfile, "--json").ran()
        document = json.loads(done.out)
        assert directories(launcher, old) == []
        assert len(directories(launcher, new)) == 3
        assert len(directories(launcher, alive)) == 3
        assert document["unreachable"] == {}
        freed = sum(place["freed_bytes"] for place in document["places"])
        assert before - kept_bytes(launcher, alive) == freed > 0
        for entry in document["places"]:
            assert list(entry["removed"]) == [old]
            assert entry["stay"]["runs"] == 2
            assert entry["failed"] == {}
        words = ("--older=0s", "--keep-last=2", "--json")
        again = json.loads(launcher.run("clean", "--hosts", hostfile, *words).ran().out)
        assert again["stays"] == {
            **{alive: "it is alive on host[1-2], this machine", new: "it is one of the newest 2"}
        }
        assert launcher.leftovers(alive)
        assert (precious / "thesis").read_text() == "years"

        refused = launcher.run("clean", alive).ran(2)
        assert f"{alive} stays: it is alive" in refused.sentences
        assert f"tflaunch stop {alive}" in refused.sentences
        nothing = launcher.run("clean", "--hosts", hostfile).ran()
        assert "host[1-2]: nothing to remove; 2 stay" in nothing.out
        running.interrupt()
        running.end()
    named = launcher.run("clean", alive[:-1], "-y").ran()
    assert "1 run removed" in named.out
    assert directories(launcher, alive) == []


def test_two_names_of_one_directory_are_one_place(network: SshNetwork, launcher: Launcher) -> None:
    shared = launcher.hostfile([network.add().name for _ in range(2)])
    script = launcher.script("print('done')")
    launcher.run("run", shared, script, "--ps=0", "--workers=2", "--done=all").ran()
    launcher.run(
        "clean", "--hosts", shared, "--older=0s", "--dry-run"
    ).ran()  # its own modules are kept there now
    before = removal.Size(str(launcher.hosts)).bytes + removal.Size(str(launcher.state)).bytes
    done = launcher.run("clean", "--hosts", shared, "--older=0s", "--json").ran()
    places = json.loads(done.out)["places"]
    assert [entry["hosts"] for entry in places] == [["host1", "host2"], []]
    after = removal.Size(str(launcher.hosts)).bytes + removal.Size(str(launcher.state)).bytes
    assert sum(entry["freed_bytes"] for entry in places) == before - after > 0
    assert launcher.run_directories() == []


def test_all_but_the_newest_and_by_size(launcher: Launcher, hostfile: Path) -> None:
    big = "open('big', 'wb').write(b'x' * 3_000_000)"
    runs = [ended_run(launcher, hostfile, days, big) for days in (9, 8, 7, 6)]
    launcher.run("clean", "-H", hostfile, "--max-size=11M").ran()
    assert [len(directories(launcher, run)) for run in runs] == [1, 3, 3, 3]  # the records here are small
    launcher.run("clean", "-H", hostfile, "--keep-last=2").ran()
    assert [len(directories(launcher, run)) for run in runs] == [0, 0, 3, 3]
    launcher.run("clean", "-H", hostfile, "--older=0s", "--keep-last=1").ran()
    assert [len(directories(launcher, run)) for run in runs] == [0, 0, 0, 3]


def test_a_host_that_is_down(network: SshNetwork, launcher: Launcher, hostfile: Path) -> None:
    ended = ended_run(launcher, hostfile, 30)
    with endless(launcher, hostfile) as running:
        lost = running.run_id
        running.signal(signal.SIGKILL)
        running.end()
        kill(launcher, lost, agents=True)
        until(lambda: not any(each.is_agent for each in launcher.leftovers(lost)), "the end of all agents")
        kill(launcher, lost, agents=False)
        launcher.wait_until_nothing_is_left()
    for directory in directories(launcher, lost):
        make_old(directory)
    network.sshds[1].kill()
    done = launcher.run("clean", "--hosts", hostfile).ran(69)
    assert "refuses the connection" in done.sentences
    assert f"{lost} stays: it may be alive on host2, not asked" in done.out
    left = [path.relative_to(launcher.directory).parts[:2] for path in directories(launcher, ended)]
    assert left == [("hosts", "host2")]
    assert len(directories(launcher, lost)) == 3
    network.sshds[1].start()
    launcher.run("clean", "--hosts", hostfile).ran()
    assert directories(launcher, ended) + directories(launcher, lost) == []


def test_a_run_that_starts_meanwhile_is_not_touched(launcher: Launcher, hostfile: Path) -> None:
    with endless(launcher, hostfile) as first:  # one lives and one begins
        script = launcher.script("import time; print('second', flush=True); time.sleep(3600)")
        with launcher.start("run", hostfile, script, "--ps=1", "--workers=1", "--grace=0") as second:
            cleans: list[Done] = []
            while second.out.count("second") < 2:
                assert second.process.poll() is None, second.err
                cleans.append(launcher.run("clean", "--hosts", hostfile, "--older=0s", "-y").ran())
            assert cleans
            launcher.run("clean", "--hosts", hostfile, "--older=0s", "-y").ran()
            for running in (first, second):
                assert len(directories(launcher, running.run_id)) == 3
                running.interrupt()
                assert running.end() == 130, running.err
    launcher.run("clean", "--hosts", hostfile, "--older=0s", "-y").ran()
    assert launcher.records() == []


def test_on_a_terminal_it_asks(launcher: Launcher, hostfile: Path) -> None:
    run = ended_run(launcher, hostfile, 30)
    for answer in (b"\n", b"y\n"):
        main, other = pty.openpty()
        process = subprocess.Popen(
            launcher.argv("clean", "--hosts", hostfile),
            stdin=other,
            stdout=other,
            stderr=other,
            env=launcher.env(TERM="dumb"),
            cwd=launcher.code,
        )
        os.close(other)
        shown = b""
        while b"[y/N]" not in shown:
            shown += os.read(main, 4096)
        assert run.encode() in shown
        os.write(main, answer)
        try:
            while more := os.read(main, 4096):
                shown += more
        except OSError:
            pass  # a terminal ends like that
        assert process.wait(60) == 0
        os.close(main)
        assert (b"nothing was removed" in shown) is (answer == b"\n")
        assert bool(directories(launcher, run)) is (answer == b"\n")


def test_what_makes_no_sense_is_refused(launcher: Launcher, hostfile: Path) -> None:
    for words in (
        ("--older=soon",),
        ("--older=7",),
        ("--max-size=lots",),
        ("--keep-last=-1",),
        ("trainer-aaaaaa", "--older=1d"),
        ("../../etc",),
        ("nobody-aaaaaa",),
    ):
        launcher.run("clean", "--hosts", hostfile, *words).ran(2)
    shutil.rmtree(launcher.hosts, ignore_errors=True)
    nowhere = launcher.run("clean").ran(2)
    assert "tflaunch clean --hosts" in nowhere.sentences
