"""Commands at both doors of a slot holder: what goes in and out, how they end, and who stops nobody else."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.slot.conftest import Hold
from tests.support.agent_over_pipes import descriptors
from tests.support.patience import PATIENCE_S, until, written
from tests.support.slots import CERTIFICATE, KEY, TOKEN
from tests.support.wires import Line, everything, read, serve
from tflaunch.engines.door import DoorLine, SlotDoor, dial, make_certificate
from tflaunch.protocol.errors import ConnectError, WireClosed

LINES = b"".join(b"line %d of many\n" % number for number in range(50_000))


def aside(work: Callable[..., object], *arguments: object) -> threading.Thread:
    thread = threading.Thread(target=work, args=arguments, daemon=True)
    thread.start()
    return thread


def resident(pid: int) -> int:
    """Bytes."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGESIZE")


def until_closed(send: Callable[[bytes], None], data: bytes) -> None:
    with contextlib.suppress(WireClosed):
        send(data)


def wrote(pid: str) -> int:
    """Bytes."""
    return int(Path(f"/proc/{pid}/io").read_text().split("wchar:")[1].split()[0])


def test_many_lines_go_both_ways(every: Hold) -> None:
    held = every()
    wire = held.open("cat; echo at the end >&2; exit 3", LINES[:100])
    sending = aside(wire.send, LINES[100:])
    assert read(wire, len(LINES)) == LINES
    sending.join(PATIENCE_S)
    done = held.relayed("cat; echo at the end >&2; exit 3", LINES)
    assert (done.returncode, done.stdout, done.stderr) == (3, LINES, b"at the end\n")


def test_how_a_command_ends_is_known(every: Hold) -> None:
    held = every()
    for command, code, words in (
        ("echo out; echo why >&2; exit 7", 7, "exit status 7; it said: why"),
        ("echo out; kill -9 $$", 137, "killed by signal 9"),
        ("echo out", 0, "exit status 0"),
    ):
        wire = held.open(command)
        assert everything(wire) == b"out\n"
        assert wire.last_words() == words
        assert held.relayed(command).returncode == code


def test_what_is_kept_of_stderr_is_its_end(hold: Hold) -> None:
    wire = hold().open("seq 100000 >&2")
    assert everything(wire) == b""
    kept = "\n".join(map(str, range(100_001)))[-4095:]
    assert wire.last_words() == f"exit status 0; it said: {kept}".replace("said: \n", "said: ")


def test_a_command_ends_with_its_output_though_others_have_it_open(hold: Hold) -> None:
    wire = hold().open("exec >&-; sleep 600")
    assert everything(wire) == b""
    assert wire.last_words() == "", "it has not ended"


def test_commands_are_in_a_session_at_home(hold: Hold, tmp_path: Path) -> None:
    held = hold(env={**os.environ, "HOME": str(tmp_path)})
    said = everything(held.open("ps -o pid= -o sid= $$; pwd")).split()
    assert said[0] == said[1]
    assert said[2].decode() == str(tmp_path)
    nowhere = hold(env={**os.environ, "HOME": "/no/such/home"})
    assert everything(nowhere.open("pwd")) == b"/\n"


def test_commands_get_no_other_descriptors_and_default_signals(hold: Hold) -> None:
    held = hold(under=["sh", "-c", 'exec 9>/dev/null; exec "$@"', "sh"])
    assert descriptors(held.pid)[9] == "/dev/null"
    for command in ("ls /proc/self/fd", "grep -E 'Sig(Ign|Blk)' /proc/self/status"):
        # Tests may run in the background, where some signals are ignored.
        default = "import os, sys; from signal import signal; [signal(each, 0) for each in (1, 2, 3, 13, 25)]"
        default += "; os.execvp('sh', sys.argv[1:])"
        words = [sys.executable, "-c", default, "sh", "-c", command]
        here = subprocess.run(words, capture_output=True, check=True, stdin=subprocess.PIPE)
        assert everything(held.open(command)) == here.stdout
        assert held.relayed(command).stdout == here.stdout


def test_a_command_that_reads_nothing_loses_nothing_of_its_output(hold: Hold) -> None:
    """Unread bytes would make the kernel reset the connection, and take back what is on the way."""
    held = hold()
    for _ in range(20):
        wire = held.open("seq 20000")
        aside(until_closed, wire.send, LINES)
        assert everything(wire) == b"".join(b"%d\n" % number for number in range(1, 20_001))


def test_the_end_of_a_wire_is_the_end_of_stdin(hold: Hold, tmp_path: Path) -> None:
    held = hold()
    script = (
        "import sys, time\nfrom tests.support.slots import *\n"
        "wire = SlotDoor(('127.0.0.1',), int(sys.argv[1]), open(sys.argv[2]).read(), TOKEN).open(sys.argv[3])\n"
        "wire.listen(lambda data: print(data, flush=True))\ntime.sleep(600)\n"
    )
    (tmp_path / "certificate").write_text(CERTIFICATE)
    words = [
        str(held.told["port"]),
        str(tmp_path / "certificate"),
        f"echo in; cat; echo over > {tmp_path}/over",
    ]
    with subprocess.Popen([sys.executable, "-c", script, *words], stdout=subprocess.PIPE) as caller:
        assert caller.stdout is not None
        assert caller.stdout.readline() == b"b'in\\n'\n"
        caller.kill()
    assert written(tmp_path / "over", "the command to see the end of its stdin") == "over\n"


def test_a_command_outlives_its_relay(hold: Hold, tmp_path: Path) -> None:
    held = hold()
    with held.relay(
        f"echo in; cat; echo over > {tmp_path}/over", stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as relay:
        assert relay.stdout is not None
        assert relay.stdin is not None
        assert relay.stdout.readline() == b"in\n"
        relay.kill()
        relay.wait()
        relay.stdin.write(b"more\n")
        relay.stdin.flush()
        assert relay.stdout.readline() == b"more\n"
    assert written(tmp_path / "over", "the command to go on") == "over\n"


def test_a_killed_holder_ends_wires_relays_and_agents(hold: Hold) -> None:
    held = hold()
    agent, wire = held.agent(), held.open("cat")
    with held.relay("exec sleep 600", stderr=subprocess.PIPE) as relay:
        until(lambda: held.door.look(PATIENCE_S).running == 2, "the relay's command to run")
        pids = [int(pid) for pid in Path(f"/proc/{held.pid}/task/{held.pid}/children").read_text().split()]
        held.signal(signal.SIGKILL)
        try:
            assert agent.hear() is None
            assert everything(wire) == b""
            assert "its slot holder does not answer, either" in wire.last_words()
            assert relay.wait(PATIENCE_S) == 75
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
        assert relay.stderr is not None
        assert relay.stderr.read() == b"slot: the slot holder has ended\n"
    done = held.relayed("true")
    assert done.returncode == 75
    assert done.stderr == b"slot: the slot holder does not answer: Connection refused\n"


def test_who_reads_or_takes_nothing_stops_nobody_and_costs_little(hold: Hold) -> None:
    held = hold()
    before = resident(held.pid)
    deaf = held.door.open("exec head -c 300000000 /dev/zero", timeout_s=PATIENCE_S)
    (writer,) = Path(f"/proc/{held.pid}/task/{held.pid}/children").read_text().split()
    stuffed = held.open("sleep 600")
    assert read(held.open("echo started"), 8) == b"started\n"
    told: list[Exception] = []

    def stuff() -> None:
        try:
            while True:
                stuffed.send(bytes(1 << 20))
        except WireClosed as error:
            told.append(error)

    stuffing = aside(stuff)
    until(lambda: not stuffed.send_now(b"x"), "no more to fit in")
    for _ in range(5):
        wire = held.open("cat")
        sending = aside(wire.send, LINES)
        assert read(wire, len(LINES)) == LINES
        sending.join(PATIENCE_S)
        wire.close()
    until(lambda: wrote(writer) == (time.sleep(0.1), wrote(writer))[1], "the writer to wait")
    assert resident(held.pid) - before < 8 << 20
    stuffed.close()
    stuffing.join(PATIENCE_S)
    assert told
    deaf.close()


def test_many_wires_at_once(hold: Hold) -> None:
    held = hold()
    wires = []
    lock = threading.Lock()

    def one() -> None:
        wire = held.open("cat")
        with lock:
            wires.append(wire)
        wire.send(LINES[:100_000])

    threads = [aside(one) for _ in range(64)]
    for thread in threads:
        thread.join(PATIENCE_S)
    assert len(wires) == 64
    for wire in wires:
        assert read(wire, 100_000) == LINES[:100_000]
    assert held.door.look(PATIENCE_S).running == 64
    for wire in wires:
        wire.close()
    until(lambda: held.door.look(PATIENCE_S).running == 0, "all commands to have seen the end")
    until(lambda: len(descriptors(held.pid)) < 16, "their descriptors to be closed")


def test_closing_is_silent_and_idempotent(hold: Hold) -> None:
    held = hold()
    wire = held.door.open("cat", timeout_s=PATIENCE_S)
    wire.close()
    wire.close()
    assert wire.last_words() == ""
    with pytest.raises(WireClosed):
        wire.send(b"x")


# ---- who is not let in


def refusal(door: SlotDoor, timeout_s: float = PATIENCE_S) -> ConnectError:
    with pytest.raises(ConnectError) as caught:
        door.open("cat", timeout_s=timeout_s)
    assert caught.value.hint
    assert "127.0.0.1" not in caught.value.message
    return caught.value


def test_another_certificate_is_refused(hold: Hold) -> None:
    port = hold().told["port"]
    error = refusal(SlotDoor(("127.0.0.1",), port, make_certificate()[0], TOKEN))
    assert error.message.endswith("is not its slot holder: it has another certificate")


def test_a_wrong_token_hears_nothing(hold: Hold) -> None:
    held = hold()
    for token in ("", "5a" * 15, "\u00e4", TOKEN + "5"):
        assert (
            "wrong token" in refusal(SlotDoor(("127.0.0.1",), held.told["port"], CERTIFICATE, token)).message
        )
        line = dial(["127.0.0.1"], held.told["port"], CERTIFICATE, token, PATIENCE_S)
        line.send(b'{"token": "%s", "look": true}\n' % token.encode())
        with pytest.raises((EOFError, OSError)):
            line.receive()
        line.close()


def test_no_holder_at_all() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        told = SlotDoor(("127.0.0.1",), port, CERTIFICATE, TOKEN)
        assert "has not answered within 0.3 s" in refusal(told, 0.3).message
        listener.accept()[0].close()
        thread = serve(listener, b"SSH-2.0-OpenSSH_9.6\r\n", b"")
        assert "is no slot holder" in refusal(told).message
        assert "hung up" in refusal(told).message
        thread.join(PATIENCE_S)
    assert refusal(told).message == f"port {port}, where the slot holder listens, refuses the connection"
    assert (
        "does not resolve" in refusal(SlotDoor(("no.such.name.invalid",), port, CERTIFICATE, TOKEN)).message
    )


def test_the_next_address_is_tried(hold: Hold) -> None:
    """The first leads to something else; the holder's loopback is not tried where it has other addresses."""
    with socket.create_server(("127.0.0.2", 0)) as other:
        port = other.getsockname()[1]
        error = refusal(SlotDoor(("192.0.2.77", "127.0.0.2"), port, CERTIFICATE, TOKEN), 0.3)
        assert "port" in error.message or "route" in error.message
        other.settimeout(0.0)
        with pytest.raises(BlockingIOError):
            other.accept()
    held = hold()
    door = SlotDoor(("127.0.0.2", "127.0.0.1"), held.told["port"], CERTIFICATE, TOKEN)
    assert door.look(PATIENCE_S).running == 0


def test_a_caller_without_proof_is_dropped(hold: Hold) -> None:
    """After its time; and at once, the oldest first, when there are too many."""
    held = hold()
    address = ("127.0.0.1", held.told["port"])
    silent = [socket.create_connection(address) for _ in range(200)]
    for each in silent:
        each.settimeout(PATIENCE_S)
    assert held.door.look(PATIENCE_S).running == 0
    assert len(descriptors(held.pid)) < 160
    assert silent[0].recv(1) == b""
    assert silent[-1].recv(1) == b""
    for each in silent:
        each.close()


def test_a_line_without_end_is_dropped(hold: Hold) -> None:
    held = hold()
    before = resident(held.pid)
    lines: list[DoorLine] = []
    for _ in range(20):
        line = dial(["127.0.0.1"], held.told["port"], CERTIFICATE, TOKEN, PATIENCE_S)
        lines.append(line)
        with pytest.raises((EOFError, OSError)):
            line.send(b"x" * (1 << 20))
            line.send(b"x" * (1 << 20))
            line.receive()
    for line in lines:
        line.close()
    assert held.door.look(PATIENCE_S).running == 0
    assert resident(held.pid) - before < 16 << 20


def test_a_door_that_is_asked_for_at_the_socket(hold: Hold) -> None:
    """The first who asks says what lets in there; the others are told."""
    held = hold(door=False, token="", certificate="", key="")
    assert held.told["port"] == 0
    asks = held.call()
    asks.say(door={"certificate": CERTIFICATE, "key": KEY, "token": TOKEN})
    told = asks.hear()
    assert told is not None
    assert (told["certificate"], told["token"]) == (CERTIFICATE, TOKEN)
    assert "127.0.0.1" in told["addresses"]
    door = SlotDoor(("127.0.0.1",), told["port"], CERTIFICATE, TOKEN)
    with contextlib.closing(Line(door.open("echo in", timeout_s=PATIENCE_S))) as wire:
        assert everything(wire) == b"in\n"
    other, key = make_certificate()
    late = held.call()
    late.say(door={"certificate": other, "key": key, "token": "another"})
    assert late.hear() == told
    # Who is at that door cannot ask for one.
    with contextlib.closing(door.dial(PATIENCE_S)) as line, pytest.raises(ConnectError):
        line.ask(door={"certificate": other, "key": key, "token": "another"})


def test_no_door_where_the_key_is_none(hold: Hold) -> None:
    held = hold(door=False, token="", certificate="", key="")
    asks = held.call()
    asks.say(door={"certificate": CERTIFICATE, "key": "no key", "token": TOKEN})
    told = asks.hear()
    assert told is not None
    assert "port" not in told
    assert told["why"]
    assert held.relayed("echo still here").stdout == b"still here\n"
