"""How the agent boots: under the shells, beside the wrong Pythons, behind what a shell prints."""

from __future__ import annotations

import marshal
import os
import re
import shutil
import signal
import subprocess
import zlib
from pathlib import Path

import pytest

import tflaunch
from tests.support.agent_over_pipes import Channel, boot, environment, hello, interpreters, kept_modules
from tests.support.patience import PATIENCE_S
from tflaunch.protocol import wire
from tflaunch.protocol.wire import MAGIC
from tflaunch.sessions import payload

ROOT = Path(tflaunch.__file__).parent
SHELLS = ["sh", "bash", "dash", "zsh", "ksh", "csh", "tcsh", "fish"]
TOO_OLD = [(2, 7), (3, 6), (3, 7)]


def only(directory: Path, **programs: str | Path) -> str:
    """A PATH that holds these programs and no other."""
    directory.mkdir(parents=True)
    for name, target in programs.items():
        (directory / name).symlink_to(target)
    return str(directory)


def refusal(channel: Channel) -> tuple[int, str]:
    """How a boot that must fail has ended: exit status and stderr."""
    try:
        assert channel.next() is None
        return channel.wait_end(), channel.last_words()
    finally:
        channel.kill()
        channel.close()


# ---- the line


def test_the_texts_of_the_boot_line_pass_through_every_shell_unchanged() -> None:
    for text in (payload.FIND_PYTHON, payload.READER, payload.reader_as("ada")):
        assert not {"'", "\n", "!"} & set(text)
        for number, letter in enumerate(text):
            if letter == "\\":
                assert text[number + 1] not in "'\"\\"
    for reader in (payload.READER, payload.reader_as("ada")):
        for line in reader.split("\\n"):
            assert "\\" not in line  # nothing for an inner quotation to eat


@pytest.mark.parametrize("name", ["", 'a"+b', "a b", "-x", "a;b", "$(id)", "a\nb", "x" * 66])
def test_what_is_no_name_of_an_account_reaches_no_shell(name: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(name)}$"):
        payload.reader_as(name)


@pytest.mark.parametrize("name", SHELLS)
def test_it_boots_under_the_login_shell(name: str, tmp_path: Path) -> None:
    if not (shell := shutil.which(name)):
        pytest.skip(f"no {name} here")
    hello(Channel("visit", run_dir=tmp_path, login=(shell,), env=environment(tmp_path)))


def test_whatever_stands_in_its_words_arrives_as_it_is(tmp_path: Path) -> None:
    odd = tmp_path / 'it\'s a "dir" $HOME `x` \\n ü * ;&'
    channel = Channel("visit", run_dir=odd, env=environment(tmp_path))
    try:
        assert channel.wait("hello")["directory"] == f"{odd}/tflaunch-{os.getuid()}"
    finally:
        channel.kill()
        channel.close()


def test_what_a_login_shell_prints_is_told_from_the_agent(tmp_path: Path) -> None:
    (tmp_path / "env.sh").write_text("echo 'motd: tflaunch-wire 3'; printf '\\0tflaunch'; unset BASH_ENV\n")
    channel = Channel(
        "visit",
        run_dir=tmp_path,
        login=("bash",),
        env=environment(tmp_path, BASH_ENV=str(tmp_path / "env.sh")),
    )
    try:
        channel.wait("hello")
        assert channel.noise().startswith(b"motd: ")
    finally:
        channel.kill()
        channel.close()


# ---- which Python


def test_without_a_python3_in_path_the_usual_places_are_tried(tmp_path: Path) -> None:
    if not any(map(os.path.exists, ("/usr/bin/python3", "/usr/local/bin/python3"))):
        pytest.skip("no python3 outside PATH here")
    path = only(tmp_path / "bin", sh="/bin/sh")
    hello(Channel("visit", run_dir=tmp_path, env=environment(tmp_path, path)))


def without_the_usual_places(line: str) -> str:
    return line.replace("/usr/bin/python3 /usr/local/bin/python3 /usr/libexec/platform-python", "")


def test_no_python3_at_all_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(payload, "FIND_PYTHON", without_the_usual_places(payload.FIND_PYTHON))
    path = only(tmp_path / "bin", sh="/bin/sh")
    ended = subprocess.run(
        ["/bin/sh", "-c", payload.boot_line("visit")],
        env=environment(tmp_path, path),
        input=b"",
        capture_output=True,
        check=False,
    )
    assert ended.returncode == 127
    assert ended.stderr.decode() == f"tflaunch: no python3 on this host (PATH is {path})\n"


@pytest.mark.parametrize("tilde", [False, True])
def test_the_named_python_serves_where_there_is_no_other(
    tilde: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(payload, "FIND_PYTHON", without_the_usual_places(payload.FIND_PYTHON))
    env = environment(tmp_path, only(tmp_path / "bin", sh="/bin/sh"))
    named = Path(env["HOME"]) / "my python"
    named.symlink_to(interpreters()[-1])
    hello(Channel("visit", run_dir=tmp_path, env=env, python="~/my python" if tilde else str(named)))


def test_an_agent_in_a_slot_runs_by_the_python_of_its_holder(tmp_path: Path) -> None:
    """Whatever python3 leads to there: a wrapper that takes seconds, or an old one."""
    path = only(tmp_path / "bin", sh="/bin/sh", python3="/bin/false")
    env = environment(tmp_path, path, TFLAUNCH_SLOT_PYTHON=interpreters()[-1])
    hello(Channel("visit", run_dir=tmp_path, env=env))


def old_python(version: tuple[int, int]) -> str:
    name = f"python{version[0]}.{version[1]}"
    places = [*Path("~/.pyenv/versions").expanduser().glob(f"*/bin/{name}"), *map(Path, [f"/usr/bin/{name}"])]
    for place in places:
        if place.exists():
            return str(place)
    pytest.skip(f"no {name} here")


@pytest.mark.parametrize("version", TOO_OLD[1:])
def test_a_python3_that_is_too_old_hands_over_to_a_newer_one_beside_it(
    version: tuple[int, int], tmp_path: Path
) -> None:
    new = interpreters()[-1]
    name = subprocess.run(
        [new, "-c", "import sys; print('python%d.%d' % sys.version_info[:2])"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    path = only(tmp_path / "bin", sh="/bin/sh", python3=old_python(version), **{name: new})
    hello(Channel("visit", run_dir=tmp_path, env=environment(tmp_path, path)))


@pytest.mark.parametrize("version", TOO_OLD[1:])
def test_a_python3_that_is_too_old_hands_over_to_the_named_one(
    version: tuple[int, int], tmp_path: Path
) -> None:
    path = only(tmp_path / "bin", sh="/bin/sh", python3=old_python(version))
    hello(Channel("visit", run_dir=tmp_path, env=environment(tmp_path, path), python=interpreters()[-1]))


@pytest.mark.parametrize("version", TOO_OLD[1:])
def test_nothing_but_a_python3_that_is_too_old_says_so(version: tuple[int, int], tmp_path: Path) -> None:
    old = old_python(version)
    path = only(tmp_path / "bin", sh="/bin/sh", python3=old)
    status, said = refusal(Channel("visit", run_dir=tmp_path, env=environment(tmp_path, path), python=old))
    assert status == 1
    assert (
        said.strip() == f"tflaunch: python {version[0]}.{version[1]} is too old, the agent needs 3.8 or newer"
    )


def test_python_2_can_read_the_reader() -> None:
    old = old_python(TOO_OLD[0])
    ended = subprocess.run(
        [old, "-c", payload.READER, "tflaunch-agent", "1"],
        env={"PATH": "/nowhere"},
        capture_output=True,
        check=False,
    )
    assert ended.stderr.decode().strip().startswith("tflaunch: python 2.7 is too old")


@pytest.mark.parametrize("whole", [payload.loader(), payload.loader() + payload.agent()])
def test_a_channel_that_ends_in_the_middle_of_the_agent_says_so(whole: bytes, tmp_path: Path) -> None:
    ended = subprocess.run(
        ["/bin/sh", "-c", payload.boot_line("visit", run_dir=str(tmp_path))],
        input=whole[:-1],
        env=environment(tmp_path),
        capture_output=True,
        check=False,
    )
    assert ended.returncode == 1
    assert ended.stderr.decode().strip() == "tflaunch: the channel ended while the agent was on its way"


def test_a_channel_that_says_nothing_more_is_not_waited_for_forever() -> None:
    line = payload.boot_line("visit")
    assert "alarm(120)" in line
    words = ["/bin/sh", "-c", line.replace("alarm(120)", "alarm(1)")]
    with subprocess.Popen(words, stdin=subprocess.PIPE) as waiting:  # the pipe stays open
        assert waiting.wait(PATIENCE_S) == -signal.SIGALRM


# ---- what is shipped


@pytest.mark.parametrize("python", interpreters())
def test_an_agent_loads_little(python: str) -> None:
    """Each of these is milliseconds of CPU on every host of every run."""
    script = (
        f"import sys; sys.path.insert(0, {str(ROOT.parent)!r})\n"
        "from tflaunch.protocol import dialling, wire\n"
        "from tflaunch import gpu_probe\n"
        "from tflaunch.agent import daemon, host_facts, requests, staging\n"
        "from tflaunch.agent.files import code_store, outputs\n"
        "from tflaunch.agent.host import container, guard, processes, python_site\n"
        "from tflaunch.agent.net import dial_answering\n"
        "from tflaunch.agent.tasks import exit_facts, oom_kills, syntax, team\n"
        "from tflaunch.in_task import stacks_site\n"
        "processes.become_subreaper()\n"
        "task = {'id': 'worker/0', 'argv': ['python3'], 'env': {}, 'cwd': None, 'setup': []}\n"
        "syntax.who_checks([task], {'': {'file': 'trainer.py', 'read_by': ''}})\n"
        "gpu_probe.probe()\n"
        "said = {'a': [1, 2.5, None, True, 'x\\udcff\\u00e9'], 'b': {}}\n"
        "assert wire.loads(wire.dumps(said)) == said\n"
        "print(*sys.modules)\n"
        "import json\n"
        "assert wire.dumps(said) == json.dumps(said, separators=(',', ':'))\n"
    )
    done = subprocess.run([python, "-I", "-S", "-c", script], capture_output=True, text=True, check=True)
    heavy = (
        "array ast collections ctypes dataclasses encodings.idna enum fnmatch inspect json re selectors shutil signal "
        "socket subprocess tarfile threading typing"
    )
    assert set(heavy.split()).isdisjoint(done.stdout.split())


def test_tracebacks_show_the_lines_of_the_source(tmp_path: Path) -> None:
    channel = Channel("visit", run_dir=tmp_path, env=environment(tmp_path))
    channel.wait("hello")
    channel.write(b"\xff" * 8)  # no frame: the agent cannot go on
    assert channel.next() is None
    said = channel.last_words()
    channel.close()
    assert 'File "<tflaunch>/agent/visit.py"' in said
    assert "in feed" in said
    assert "came = decoder.feed(data)" in said  # a line of the source, not only its number
    assert "WireError" in said


def test_modules_are_compiled_once_where_shipped_code_is_kept(tmp_path: Path) -> None:
    boot(tmp_path)
    assert kept_modules(tmp_path) == []  # nobody has made a place for them
    code = tmp_path / f"tflaunch-{os.getuid()}" / "code"
    code.mkdir(mode=0o700, parents=True)
    code.parent.chmod(0o700)
    boot(tmp_path)
    kept = kept_modules(tmp_path)
    # The version alone would not tell PyPy's code from CPython's.
    python = r"(cpython-|pypy)\d+-[0-9a-f]{7,8}"
    name = re.compile(rf"agent-[0-9a-f]{{16}}-{python}-tflaunch\.agent\.visit\.pyc")
    assert any(name.fullmatch(path.name) for path in kept)
    written = [path.stat().st_mtime_ns for path in kept]
    boot(tmp_path)
    assert [path.stat().st_mtime_ns for path in kept_modules(tmp_path)] == written
    assert not list(code.glob("*.part"))


def test_the_agent_is_sent_only_where_it_is_not_kept_whole(tmp_path: Path) -> None:
    loader, agent = len(payload.loader()), len(payload.agent())
    assert boot(tmp_path) == boot(tmp_path) == loader + agent  # nobody has made a place for it
    code = tmp_path / f"tflaunch-{os.getuid()}" / "code"
    code.mkdir(mode=0o700, parents=True)
    code.parent.chmod(0o700)
    assert [boot(tmp_path), boot(tmp_path)] == [loader + agent, loader]
    (kept,) = code.glob("agent-*.z")
    assert kept.read_bytes()[4:] in payload.agent()
    kept.write_bytes(kept.read_bytes()[:-1])
    assert [boot(tmp_path), boot(tmp_path)] == [loader + agent, loader]
    code.chmod(0o770)
    assert boot(tmp_path) == loader + agent


def test_the_agent_is_kept_where_the_holder_of_its_slot_says(tmp_path: Path) -> None:
    disk, slot = tmp_path / "disk", tmp_path / "slot"
    slot.mkdir()
    code = disk / f"tflaunch-{os.getuid()}" / "code"
    code.mkdir(mode=0o700, parents=True)
    code.parent.chmod(0o700)
    env = environment(tmp_path, TFLAUNCH_SLOT_CODE=str(disk))
    for _ in range(2):
        hello(channel := Channel("visit", run_dir=slot, env=env))
    assert channel.written == len(payload.loader())
    assert kept_modules(disk)
    assert not list(slot.iterdir())


def test_frames_that_come_before_the_agent_are_not_lost(tmp_path: Path) -> None:
    asked = wire.encode("list", all=True, run="", tail_bytes=0)
    measured = wire.encode("measure")
    ended = subprocess.run(
        ["/bin/sh", "-c", payload.boot_line("visit", run_dir=str(tmp_path))],
        input=payload.loader() + asked + payload.agent() + measured + wire.encode("bye"),
        env=environment(tmp_path),
        capture_output=True,
        check=True,
    )
    told = [message.type for message in wire.Decoder(magic=True).feed(ended.stdout)]
    assert told == ["lacks", "hello", "runs", "usage"]


@pytest.mark.parametrize("damage", [b"", b"\0\0\0\0nonsense", b"\0" * 4])
def test_a_compiled_module_that_is_damaged_is_compiled_again(tmp_path: Path, damage: bytes) -> None:
    (tmp_path / f"tflaunch-{os.getuid()}").mkdir(mode=0o700)
    (tmp_path / f"tflaunch-{os.getuid()}/code").mkdir(mode=0o700)
    boot(tmp_path)
    for path in kept_modules(tmp_path):
        path.write_bytes(damage or path.read_bytes()[:-9])
    boot(tmp_path)
    assert all(
        zlib.crc32((data := path.read_bytes())[4:]).to_bytes(4, "big") == data[:4]
        for path in kept_modules(tmp_path)
    )


def test_a_compiled_module_in_a_directory_that_others_may_write_is_not_believed(tmp_path: Path) -> None:
    parent = tmp_path / f"tflaunch-{os.getuid()}"
    (parent / "code").mkdir(parents=True)
    for path in (parent, parent / "code"):
        path.chmod(0o700)
    boot(tmp_path)
    hostile = marshal.dumps(compile("raise SystemExit('hostile')", "hostile", "exec"))
    for path in kept_modules(tmp_path):
        path.write_bytes(zlib.crc32(hostile).to_bytes(4, "big") + hostile)
    (parent / "code").chmod(0o770)
    boot(tmp_path)  # it starts all the same


def test_the_first_word_on_the_channel_is_the_magic(tmp_path: Path) -> None:
    ended = subprocess.run(
        ["/bin/sh", "-c", payload.boot_line("visit", run_dir=str(tmp_path))],
        input=payload.loader() + payload.agent(),
        env=environment(tmp_path),
        capture_output=True,
        check=True,
    )
    assert ended.stdout.startswith(MAGIC)
    assert ended.stderr == b""
