"""What a host that has been broken into can do to who fetches from it: a real agent, whose words are changed.

Between the agent and the wire stands a relay that passes each frame to the function `lie` of the test.
"""

from __future__ import annotations

import itertools
import os
import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from tests.support import ROOT
from tests.support.launcher import Done, Launcher
from tests.support.sshd import SshNetwork
from tflaunch.code import fetched_mark
from tflaunch.protocol import wire

# Stands on the PATH of the host as python3.  What is no agent, or has nothing to lie about, is Python at once.
RELAY = f"""\
#!{sys.executable} -IS
import json, os, runpy, struct, subprocess, sys
lies = os.environ.get("LIES", "")
if "tflaunch-agent" not in sys.argv or not os.path.exists(lies):
    os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
sys.path.insert(0, {str(ROOT)!r})
from tflaunch.protocol import wire
lie, host = runpy.run_path(lies)["lie"], sys.argv[sys.argv.index("tflaunch-agent") + 4]
agent = subprocess.Popen([sys.executable, *sys.argv[1:]], stdout=subprocess.PIPE)
decoder = wire.Decoder(magic=True)
waits = True
while data := os.read(agent.stdout.fileno(), 1 << 16):
    said = decoder.feed(data)
    if waits and not decoder.awaiting_magic:
        waits = False
        sys.stdout.buffer.write(wire.MAGIC)
    for message in said:
        for kind, fields, body in lie(host, message.type, message.fields, message.body):
            head = json.dumps({{**fields, "type": kind}}).encode()
            sys.stdout.buffer.write(struct.pack("!II", len(head), len(body)) + head + body)
    sys.stdout.buffer.flush()
"""
# For all lies: other rows of a `found` message, and another piece than the agent's.
LIES = """\
asked = 0
def found(rows, last=True):
    return ("found", {"files": rows, "left": [], "there": [], "last": last}, b"")
def piece(fields, body, **more):
    return [("piece", {**fields, **more}, body)]
"""
WRITE = """
    import os, pathlib
    pathlib.Path("results").mkdir()
    name = os.environ["TFLAUNCH_HOST"]
    pathlib.Path(f"results/{name}.txt").write_text(name * 100_000)
    if name == "local1":
        pathlib.Path("results/tool.txt").write_text("#!/bin/sh")
        pathlib.Path("results/tool.txt").chmod(0o755)
"""
ALL = {"results/local1.txt", "results/tool.txt", "results/local2.txt"}
TRUE = "return [(type, fields, body)]\n"


def relay(directory: Path) -> str:
    """The PATH of a host whose agents speak through the relay."""
    (program := directory / "python3").parent.mkdir(parents=True)
    program.write_text(RELAY)
    program.chmod(0o755)
    return f"{directory}:{os.environ['PATH']}"


def lies(lie: str) -> str:
    """The program of a relay: the body of `lie(host, type, fields, body)`."""
    return (
        LIES
        + "def lie(host, type, fields, body):\n    global asked\n"
        + textwrap.indent(textwrap.dedent(lie), "    ")
    )


class Field:
    """A run that has ended on some hosts; from now on all of them lie but the last one."""

    def __init__(self, directory: Path, count: int) -> None:
        self.honest = f"local{count}"
        self._lies = directory / "lies.py"
        self.launcher = Launcher(directory)
        self._env = {"PATH": relay(directory / "bin"), "LIES": str(self._lies)}
        script, hosts = self.launcher.script(WRITE), self.launcher.local(count)
        self.launcher.run("run", hosts, script, "--ps=0", f"--workers={count}", env=self._env).ran()
        self.run = self.launcher.records()[0].name
        self._number = 0

    @property
    def to(self) -> Path:
        """Where the last fetch was to."""
        return self.launcher.directory / f"fetch{self._number}/to"

    def fetch(self, lie: str, *words: str | Path) -> tuple[Done, set[str]]:
        """`tflaunch fetch` of results/*.txt, or of what `words` say; and what is there afterwards."""
        self._number += 1
        (outside := self.to.parent).mkdir()
        indented = textwrap.indent(textwrap.dedent(lie), "    ")
        self._lies.write_text(lies(f"if host != {self.honest!r}:\n{indented}\n{TRUE}"))
        words = words or ("results/*.txt",)
        try:
            done = self.launcher.run("fetch", self.run, *words, "--to", self.to, cwd=outside, env=self._env)
        finally:
            self._lies.unlink()
        assert "Traceback" not in done.err
        assert not any(ord(char) < 32 and char != "\n" for char in done.err + done.out), done.err
        assert {path.name for path in outside.iterdir()} <= {"to"}
        if self.to.exists():  # no host has a say in what is marked
            assert (mark := self.to / fetched_mark.NAME).read_text().count("\n") == 1
            assert fetched_mark.read(str(self.to)) == frozenset()
            assert not mark.is_symlink()
        return done, {
            str(path.relative_to(self.to))
            for path in self.to.rglob("*")
            if not path.is_dir() and path != self.to / fetched_mark.NAME
        }


def at_each_host(values: Iterable[object], say: str) -> str:
    """A lie of which each host has its own value, `mine`."""
    mine = dict(zip((f"local{number}" for number in itertools.count(1)), values, strict=False))
    return f"mine = {mine!r}.get(host)\n{textwrap.dedent(say)}"


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Field]:
    """One that lies, one that does not."""
    field = Field(tmp_path_factory.mktemp("two"), 2)
    yield field
    field.launcher.close()


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Field]:
    """Fifteen of them."""
    field = Field(tmp_path_factory.mktemp("many"), 16)
    yield field
    field.launcher.close()


def test_an_honest_host_is_believed(two: Field) -> None:
    done, came = two.fetch(TRUE)
    done.ran()
    assert came == ALL


def test_what_nobody_asked_for_does_not_come_over_ssh_either(launcher: Launcher, network: SshNetwork) -> None:
    lying = launcher.directory / "lies.py"
    sshd = network.add(path=relay(launcher.directory / "bin"), env={"LIES": str(lying)})
    lying.write_text(
        lies(
            """
            if type == "found":
                fields["files"].append([".git/hooks/post-checkout", 4, 0, True])
            if type == "piece":
                return piece(fields, b"evil", size=4, modified=0, why="", gone=False)
            return [(type, fields, body)]
            """
        )
    )
    subprocess.run(["git", "init", "-q", launcher.code], check=True)
    before = sorted((launcher.code / ".git/hooks").iterdir())
    hosts, script = launcher.hostfile([sshd.name]), launcher.script(WRITE)
    words = ("--ps=0", "--workers=1", "--fetch=results/*.txt", "--fetch-to=.")
    done = launcher.run("run", hosts, script, *words).ran(74)
    assert sorted((launcher.code / ".git/hooks").iterdir()) == before
    assert not (launcher.code / "results").exists()
    assert "host1: it named '.git/hooks/post-checkout', which was not asked for" in done.sentences
    done = launcher.run("run", hosts, script, "--ps=0", "--workers=1", "--fetch=**", "--fetch-to=.").ran(74)
    assert sorted((launcher.code / ".git/hooks").iterdir()) == before


NAMES = [
    ".git/hooks/post-checkout",
    "results/.git/config",
    ".bashrc",
    "results/.hidden.txt",
    "other/x.txt",
    "results/deep/x.txt",
    "results/x.py",
    "../escape.txt",
    "results/../../escape.txt",
    "results/..",
    "/tmp/escape.txt",
    "",
    "results//x.txt",
    "./results/x.txt",
    "results/\0.txt",
]


def test_a_name_that_nobody_asked_for_ends_it_with_that_host(many: Field) -> None:
    done, came = many.fetch(
        at_each_host(
            NAMES,
            """
            if type == "found":
                fields["files"].append([mine, 3, 0, True])
            return [(type, fields, body)]
            """,
        )
    )
    done.ran(69)
    assert came == {f"results/{many.honest}.txt"}
    for number, name in enumerate(NAMES, 1):
        if "\0" not in name:
            assert f"local{number}: it named {name!r}, which" in done.sentences
    assert done.sentences.count("nothing more is taken from it") >= len(NAMES) - 1


ODD = {
    "results/\x1b]0;owned\x07\x9b.txt": "its name holds control characters",
    "results/fake\n✓ fetched.txt": "its name holds control characters",
    f"results/{'x' * 300}.txt": "its name is longer than 255 bytes",
    f"results/{'x/' * 3000}y.txt": "its path than 4,095",
    "results/\ud800.txt": "its name is not text",
    "results/git~1/hooks/x.txt": "git takes that name for its own directory",
    "results/.git\u200c/hooks/x.txt": "git takes that name for its own directory",
    "results/x\\.git\\x.txt": "git takes that name for its own directory",
    "results/.tflaunch-0-1.part": "tflaunch itself uses",
    "results/.tflaunch-fetched": "tflaunch itself uses",
    "results/.TFLAUNCH-Fetched. ": "tflaunch itself uses",
    "results/.tflaunch-fetched/x.txt": "tflaunch itself uses",
    "results/.tflaunch\u200c-fetched": "tflaunch itself uses",
    "results/.tflaunchignore": "tflaunch itself uses",
}


def test_a_name_that_no_file_here_should_have_does_not_come(two: Field) -> None:
    lie = f"""
        odd = {list(ODD)!r}
        if type == "found":
            fields["files"] += [[name, 3, 0, True] for name in odd]
        if type == "piece" and fields["path"] in odd:
            return piece(fields, b"bad", size=3, modified=0, why="", gone=False)
        return [(type, fields, body)]
    """
    patterns = ("results/**", "results/.*", "results/.*/hooks/x.txt", "results/.*/x.txt")
    done, came = two.fetch(lie, *patterns)
    done.ran(74)
    assert came == ALL
    assert len([line for line in done.err.splitlines() if "fetched 3 files" in line]) == 1
    done, _ = two.fetch(lie, *patterns, "--json")
    [told] = [event for event in done.ran(74).events if event["event"] == "fetched"]
    assert [why in told["failed"][f"local1:{name}"] for name, why in ODD.items()] == [True] * len(ODD)


def test_a_size_that_cannot_be_fills_nothing(many: Field) -> None:
    done, came = many.fetch(
        at_each_host(
            [2**60, -1, 2**80, 2**60, 2**62, 2**63 - 1],
            """
            if mine and type == "found":
                fields["files"] = [[path, mine, *more] for path, _, *more in fields["files"]]
            if mine and type == "piece":
                return piece(fields, bytes(256 * 1024), size=mine, why="")
            return [(type, fields, body)]
            """,
        )
    )
    done.ran(69)
    assert came == {f"results/local{number}.txt" for number in range(7, 17)}
    assert "local1:results/local1.txt: it has 1.0 EiB, the whole disk here" in done.sentences
    assert all(re.search(rf"(?<!\S){name}: ", done.sentences) for name in ("local2", "local3"))


def test_more_than_the_disk_has_room_for_is_told_before_anything_is_written(two: Field) -> None:
    free = shutil.disk_usage(two.launcher.directory).free
    done, came = two.fetch(
        f"""
        if type == "found":
            fields["files"] = [[path, {free * 2 // 3}, 0, False] for path, *_ in fields["files"]]
        return [(type, fields, body)]
        """
    )
    done.ran(74)
    assert came == set()
    assert "3 files, " in done.sentences
    assert "from local1), do not fit into " in done.sentences
    assert "where there is room for" in done.sentences
    assert "nothing was written" in done.sentences


ANSWERS = [
    "piece(fields, body + bytes(1000))",
    "piece(fields, body[:-1] + bytes(1000))",
    "piece(fields, body, offset=fields['offset'] + 1000)",
    "piece(fields, body, path='results/local16.txt')",
    "piece(fields, body, digest=True)",
    "piece(fields, body, path='../x')",
    "[found([['results/x.txt', 3, 0, True]])]",
]


def test_what_is_no_answer_to_what_was_asked_ends_it_with_that_host(many: Field) -> None:
    done, came = many.fetch(
        at_each_host(ANSWERS, 'return eval(mine) if mine and type == "piece" else [(type, fields, body)]')
    )
    done.ran(69)
    assert {path for path in came if not path.startswith("results/.tflaunch-")} >= {
        f"results/local{number}.txt" for number in range(len(ANSWERS) + 1, 17)
    }
    assert all((many.to / path).stat().st_size <= 700_000 for path in came)
    assert done.sentences.count("nothing more is taken from it") == len(ANSWERS)


CHANGED = {
    "piece(fields, b'')": "changed each of the 3 times",
    "piece(fields, body[:5])": "changed each of the 3 times",
    # It grows, and no beginning of it stays what it was.
    "piece(fields, bytes(32) if fields['digest'] else body, size=fields['size'] + 2**60 + asked, modified=asked)": (
        "it has grown to 1.0 EiB, more than there is room for"
    ),
    "piece(fields, b'', why='\\x1b[31mno\\n✓ fetched', size=0)": "no\\n✓ fetched",
}


def test_a_file_that_is_not_what_was_announced_does_not_come(many: Field) -> None:
    done, came = many.fetch(
        at_each_host(
            CHANGED,
            'asked += type == "piece"\nreturn eval(mine) if mine and type == "piece" else [(type, fields, body)]',
        )
    )
    done.ran(74)
    assert came == {f"results/local{number}.txt" for number in range(len(CHANGED) + 1, 17)}
    for number, sentence in enumerate(CHANGED.values(), 1):
        [line] = [
            line for line in done.err.splitlines() if f"local{number}:results/local{number}.txt: " in line
        ]
        assert sentence in line


def test_a_limit_is_kept_whatever_is_announced(two: Field) -> None:
    lie = """
        if type == "found":
            fields["files"] += [[f"results/{n}.txt", 900 * 1024, 0, False] for n in range(3)]
        return [(type, fields, body)]
    """
    done, came = two.fetch(lie, "results/*.txt", "--max=2MiB")
    done.ran(74)
    assert came == set()
    assert "from local1), are more than the limit of 2.0 MiB; nothing was written" in done.sentences
    done, came = two.fetch(TRUE, "results/*.txt", "--max=400KiB")
    done.ran(74)
    assert came == {"results/tool.txt"}
    assert "results/local1.txt: it has 586 KiB, and the limit is 400 KiB" in done.sentences


def test_nothing_is_executable_unless_that_is_wanted(two: Field) -> None:
    for words, executable in ((), False), (("--keep-mode",), True):
        done, came = two.fetch(TRUE, "results/*.txt", *words)
        done.ran()
        assert "results/tool.txt" in came
        tool = two.to / "results/tool.txt"
        assert os.access(tool, os.X_OK) == executable


def test_more_names_than_anybody_has_end_it_with_that_host(two: Field) -> None:
    done, came = two.fetch(
        """
        if type == "found":
            rows = lambda first: [[f"results/{n:03000}.txt", 0, 0, False] for n in range(first, first + 90)]
            return [found(rows(90 * n), last=False) for n in range(150)]
        return [(type, fields, body)]
        """
    )
    done.ran(69)
    assert came == {"results/local2.txt"}
    assert "local1: it named 1" in done.sentences


def test_no_host_takes_the_place_of_another_one_s_files(two: Field) -> None:
    done, came = two.fetch(
        """
        if type == "found":
            fields["files"] = [["local2/results/local2.txt", 3, 0, False], ["results/local2.txt", 3, 0, False],
                ["a", 3, 0, False], ["a/b", 3, 0, False]]
        if type == "piece":
            return piece(fields, b"bad", size=3, modified=0, why="", gone=False)
        return [(type, fields, body)]
        """,
        "**",
    )
    done.ran(74)  # a file is no directory
    assert came - {"local1/a/b", "local1/a"} == {
        "local1/local2/results/local2.txt",
        "local1/results/local2.txt",
        "local2/results/local2.txt",
    }
    text = (two.to / "local2/results/local2.txt").read_text()
    assert text == "local2" * 100_000


def test_names_that_differ_in_case_alone_both_come(two: Field) -> None:
    done, came = two.fetch(
        """
        if type == "found":
            fields["files"] = [["results/A.txt", 1, 0, False], ["results/a.txt", 1, 0, False]]
        if type == "piece":
            return piece(fields, fields["path"][8:9].encode(), size=1, modified=0, why="", gone=False)
        return [(type, fields, body)]
        """
    )
    done.ran()
    assert came == {"results/A.txt", "results/a.txt", *{"results/local2.txt"}}


def test_names_of_the_host_act_on_no_terminal(two: Field) -> None:
    done, came = two.fetch(
        """
        if type == "found":
            fields["left"] = [["results/\\x1b[2J\\n✓ all is well.txt", "\\x1b]0;x\\x07\\nno", True],
                ["\\x9b2J\\n.x", "hidden", False], [".cache", "hidden", False]]
            fields["there"] = ["\\x1b[2J\\n✓"]
        return [(type, fields, body)]
        """,
        "results/*.txt",
        "nothing",
    )
    done.ran(74)
    assert not any(line.lstrip().startswith("✓ all") for line in done.err.splitlines())
    assert "left out, for their names begin with a dot: " in done.sentences
    assert ".cache" in done.sentences
    assert came > {"results/local2.txt"}


def test_a_host_that_answers_the_wrong_question_harms_nobody(two: Field) -> None:
    done, came = two.fetch(
        """
        if type == "found":
            return [("piece", {"path": "results/x.txt", "offset": 0, "digest": False, "why": "", "gone": False,
                "size": 3, "modified": 0}, b"bad")]
        return [(type, fields, body)]
        """
    )
    done.ran(69)
    assert came == {"results/local2.txt"}


# ---- its peers, with the same input


@pytest.mark.skipif(shutil.which("rsync") is None, reason="compares with rsync")
def test_rsync_too_takes_nothing_that_was_not_asked_for(tmp_path: Path) -> None:
    """A remote rsync that is given more than its client asked for; ours ends it with that host, as rsync does."""
    for name in ("asked.txt", "more/hooks"):
        (tmp_path / "host" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "host" / name).write_text(name)
    shell = tmp_path / "ssh"  # runs the real server, on one directory more
    shell.write_text('#!/bin/sh\nshift\ncd "$HOST"\nset -- "$@" more\nexec "$@"\n')
    shell.chmod(0o755)
    done = subprocess.run(
        ["rsync", "-r", "-e", str(shell), "host:asked.txt", str(tmp_path / "here/")],
        env={**os.environ, "HOST": str(tmp_path / "host")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert "unrequested" in done.stderr or "rejecting" in done.stderr, done.stderr
    assert not (tmp_path / "here/more").exists()


def test_the_relay_speaks_as_the_agent_does() -> None:
    assert wire.PROTOCOL == 3, "look at the frames that RELAY writes"
