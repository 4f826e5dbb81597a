"""The slot holder's directory and what it tells: whose it is, how it is reached, and that it goes, with all in it."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tests.slot.conftest import Hold
from tests.support.agent_over_pipes import IS_ROOT, descriptors
from tests.support.other_users import BECOME, done_by_nobody
from tests.support.patience import PATIENCE_S, until
from tests.support.slots import BOOT, KEY, TOKEN, Held
from tests.support.wires import everything
from tflaunch.engines.holder_text import holder_text

of_root = pytest.mark.skipif(not IS_ROOT, reason="only root can be somebody else")


def test_what_it_tells(every: Hold, place: Path) -> None:
    told = every().told
    assert told["slot"] == "slot1"
    assert told["node"] == os.uname().nodename
    assert told["boot"] == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert told["directory"].startswith(f"{place}/tflaunch-slot-")
    assert told["socket"] == told["directory"] + "/slot.sock"
    assert told["addresses"][-1] == "127.0.0.1"
    assert not [each for each in told["addresses"][:-1] if each.startswith("127.")]
    here = subprocess.run(["hostname", "-I"], capture_output=True, text=True, check=True).stdout.split()
    assert {each for each in here if not each.startswith("fe80")} <= {*told["addresses"]}
    assert stat.S_IMODE(Path(told["directory"]).stat().st_mode) == 0o700
    assert stat.S_IMODE(Path(told["socket"]).stat().st_mode) & 0o177 == 0


def test_without_a_door_it_needs_no_ssl(every: Hold) -> None:
    boot = f"import sys; sys.modules['ssl'] = sys.modules['_ssl'] = None; {BOOT}"
    held = every(boot=boot, door=False, token="", certificate="", key="")
    assert held.told["port"] == 0
    assert held.relayed("echo in").stdout == b"in\n"


def test_what_a_door_needs(hold: Hold) -> None:
    held = hold(boot=f"import sys; sys.modules['ssl'] = None; {BOOT}")
    assert held.end() == 1
    assert held.said == f"slot: {sys.executable} has no ssl module: name another Python\n"
    held = hold(token="")
    assert held.end() == 1
    assert held.said == "slot: a door without a token lets everybody in\n"
    assert not list(held.stderr.parent.glob("tflaunch-slot-*"))


def test_a_lifeline_must_be_a_stream(place: Path) -> None:
    program = place / "holder.py"
    program.write_text(holder_text({"lifeline": True, "place": str(place)}))
    with program.open() as file:
        done = subprocess.run(
            [sys.executable, program], stdin=file, capture_output=True, text=True, check=False
        )
    assert done.returncode == 1
    assert done.stderr == "slot: the lifeline, stdin, is a file: nothing could end\n"
    assert list(place.iterdir()) == [program]


def test_settings_are_checked_here() -> None:
    with pytest.raises(ValueError, match="idle_S"):
        holder_text({"idle_S": 3})


def test_the_text_is_small() -> None:
    import zlib

    assert len(zlib.compress(holder_text({}).encode(), 9)) < 10_000


@pytest.mark.parametrize("closed", ["0", "1", "2", "012"])
def test_closed_descriptors_are_no_trouble(place: Path, closed: str) -> None:
    program = place / "holder.py"
    program.write_text(holder_text({"first_s": 0.1, "place": str(place)}))
    closes = " ".join(f"{each}{'<' if each == '0' else '>'}&-" for each in closed)
    done = subprocess.run(
        ["sh", "-c", f"exec {sys.executable} {program} {closes}"], capture_output=True, check=False
    )
    assert done.returncode == 0
    if "1" not in closed:
        assert json.loads(done.stdout)["port"] == 0


def test_a_long_path(hold: Hold, place: Path) -> None:
    deep = place
    while len(str(deep)) < 150:
        deep = deep / "container_1700000000000_0001_01_000002"[: 189 - len(str(deep))]
    deep.mkdir(parents=True)
    held = hold(place=str(deep))
    assert len(held.told["directory"]) > 190 - 5
    assert held.relayed("echo in").stdout == b"in\n"
    assert held.agent() is not None
    held.close()
    assert not list(deep.iterdir())


def test_where_there_is_no_room(hold: Hold, place: Path) -> None:
    held = hold(place="/no/such/place")
    assert held.end() == 1
    assert held.said == (
        "slot: no directory can be made in /no/such/place: No such file or directory: name one with room, "
        "on a local disk\n"
    )
    held = hold(place="", env={**os.environ, "TMPDIR": "/no/such/place"})
    assert held.told["directory"].startswith("/tmp/tflaunch-slot-")
    held = hold(place="", env={**os.environ, "TMPDIR": str(place)})
    assert held.told["directory"].startswith(f"{place}/tflaunch-slot-")


def test_all_in_it_is_removed_and_nothing_else(hold: Hold, place: Path) -> None:
    outside = place / "outside"
    outside.mkdir()
    (outside / "kept").write_text("kept")
    (outside / "kept").chmod(0o640)
    held = hold(grace_s=0.2)
    make = f"""
cd {held.directory} && mkdir -p runs/closed/inside && touch runs/closed/inside/file && ln -s {outside} link &&
ln -s {outside}/kept runs/link && ln {outside}/kept runs/hard && mkfifo runs/fifo &&
chmod 000 runs/closed/inside runs/closed &&
{sys.executable} -c 'import os
for _ in range(3000): os.mkdir("down"); os.chdir("down")
open("deep", "w")' && chmod 500 runs . && rm -f slot.sock; echo made"""
    assert everything(held.open(make)) == b"made\n"
    held.door.leave("over", PATIENCE_S)
    assert held.end() == 0
    assert not held.directory.exists()
    assert (outside / "kept").read_text() == "kept"
    assert stat.S_IMODE((outside / "kept").stat().st_mode) == 0o640


def test_what_stands_in_its_place_stays(hold: Hold, place: Path) -> None:
    held = hold()
    moved = place / "moved"
    held.directory.rename(moved)
    held.directory.mkdir()
    (held.directory / "slot.sock").write_text("another's")
    held.door.leave("over", PATIENCE_S)
    assert held.end() == 0
    assert (held.directory / "slot.sock").read_text() == "another's"
    assert list(moved.iterdir()) == []


# ---- directories of holders that were killed


def killed(held: Held) -> Path:
    """The directory that is left of a holder."""
    (held.directory / "runs").mkdir()
    (held.directory / "runs/file").touch()
    os.kill(held.pid, signal.SIGKILL)
    held.end()
    return held.directory


def looked_at(held: Held) -> None:
    """The holder has looked beside it, and has removed what it would."""
    until(lambda: held.door.look(PATIENCE_S).running == 0, "the end of what it has to do")


def test_the_next_holder_removes_what_a_killed_one_has_left(every: Hold) -> None:
    living, dead = every(), killed(every())
    other = every()
    until(lambda: not dead.exists(), "its directory to be removed")
    looked_at(other)
    assert everything(living.open("echo in")) == b"in\n"
    assert living.directory.exists()
    assert other.directory.exists()


def test_what_an_agent_still_uses_is_left_to_a_later_holder(hold: Hold) -> None:
    dead = killed(hold())
    agent = os.open(dead, os.O_RDONLY)
    fcntl.flock(agent, fcntl.LOCK_SH)
    looked_at(hold())
    assert (dead / "runs/file").exists()
    os.close(agent)
    hold()
    until(lambda: not dead.exists(), "its directory to be removed")


def test_what_is_no_holders_of_this_user_and_machine_stays(hold: Hold, place: Path) -> None:
    kind = hold().directory.name.rpartition("-")[0]
    dead = killed(hold())

    def like_it(name: str) -> Path:
        path = place / name
        path.mkdir(0o700)
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path / "slot.sock"))
        (path / "kept").touch()
        return path

    kept = [like_it("mine"), like_it(f"tflaunch-slot-00000000-{'0' * 16}"), like_it(f"{kind}-open")]
    kept[-1].chmod(0o770)
    (place / f"{kind}-link").symlink_to(kept[0])
    (place / f"{kind}-file").touch()
    (place / f"{kind}-bare").mkdir(0o700)
    if IS_ROOT:
        kept.append(like_it(f"{kind}-others"))
        os.chown(kept[-1], 65534, 65534)
    before = {*place.iterdir()}
    looked_at(hold())
    until(lambda: not dead.exists(), "the directory of the killed one to be removed")
    assert before - {*place.iterdir()} == {dead}
    assert all((path / "kept").exists() for path in kept)


def test_what_commands_find_in_their_environment(hold: Hold) -> None:
    env = {
        "PATH": os.environ["PATH"],
        "HOME": os.environ["HOME"],
        "SLURM_STEP_ID": "0",
        "SLURM_STEPID": "0",
        "SLURM_JOB_ID": "7",
        "CUDA_VISIBLE_DEVICES": "0",
        "slurm_step": "small",
        "TFLAUNCH_SLOT": "/another/holder",
    }
    held = hold(env=env, clean=["SLURM_STEP*", "CUDA_VISIBLE_DEVICES"], gpus="minor:0,1", code="/disk")
    wanted = {name: env[name] for name in ("PATH", "HOME", "SLURM_JOB_ID", "slurm_step")}
    wanted |= {"TFLAUNCH_SLOT": held.told["socket"], "TFLAUNCH_SLOT_GPUS": "minor:0,1"}
    wanted |= {"TFLAUNCH_SLOT_CODE": "/disk", "TFLAUNCH_SLOT_PYTHON": sys.executable}
    for said in (everything(held.open("exec env")), held.relayed("exec env").stdout):
        found = dict(each.split("=", 1) for each in said.decode().splitlines())
        assert {
            name: value for name, value in found.items() if name not in ("PWD", "_", "LC_CTYPE")
        } == wanted


# ---- another user of the machine


@of_root
def test_another_user_is_not_let_in(hold: Hold) -> None:
    held = hold()
    dial = "s = socket.socket(socket.AF_UNIX)\n"
    refused = "try: s.connect(sys.argv[1])\nexcept PermissionError: pass\nelse: sys.exit(3)\n"
    done_by_nobody(dial + refused, held.told["socket"])
    held.directory.chmod(0o755)  # as if his way were open
    Path(held.told["socket"]).chmod(0o777)
    line = json.dumps({"leave": "no"})
    done_by_nobody(
        dial + "s.connect(sys.argv[1])\nsaid = b''\n"
        "try:\n    s.sendall(sys.argv[2].encode() + b'\\n')\n    said = s.recv(100)\nexcept OSError: pass\n"
        "assert said == b'', said\n",
        held.told["socket"],
        line,
    )
    assert held.door.look(PATIENCE_S).ends_in is None


@of_root
def test_another_user_finds_no_secret(hold: Hold, place: Path) -> None:
    """Neither in what he can read nor where he would find it if he could."""
    held = hold()
    wire = held.open("echo in; exec sleep 600")
    assert wire.recv(1) == b"i"
    secrets = [TOKEN, KEY.splitlines()[1]]
    (child,) = Path(f"/proc/{held.pid}/task/{held.pid}/children").read_text().split()
    for pid in (held.pid, int(child)):
        for name in ("cmdline", "environ"):
            text = Path(f"/proc/{pid}/{name}").read_bytes().decode(errors="replace")
            assert not [secret for secret in secrets if secret in text]
    for path in place.rglob("*"):
        if path.is_file():
            assert not [secret for secret in secrets if secret in path.read_text()]
    opened = descriptors(held.pid).values()
    assert not [each for each in opened if each.endswith(("door", "(deleted)"))]
    assert [path.name for path in held.directory.iterdir()] == ["slot.sock"]
    script = f"""import glob
{BECOME}
seen = 0
every = [*glob.glob("/proc/[0-9]*/cmdline"), *glob.glob("/proc/[0-9]*/environ")]
for path in every + glob.glob(sys.argv[1] + "/**", recursive=True):
    try: text = open(path, errors="replace").read()
    except OSError: continue
    seen += 1
    assert not [each for each in sys.argv[2].split() if each[::-1] in text], path
assert seen
assert not os.access(sys.argv[3], os.R_OK | os.X_OK)
"""
    backwards = " ".join(secret[::-1] for secret in secrets)
    subprocess.run([sys.executable, "-c", script, str(place), backwards, str(held.directory)], check=True)
