"""The rendezvous of a Horovod program, as the agent serves it: over real sockets."""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import socket
from collections.abc import Callable, Iterator

import pytest

from tests.support.agent_over_pipes import Host, running, shell, swept
from tests.support.patience import until
from tflaunch.agent.tasks import rendezvous
from tflaunch.agent.tasks.rendezvous import ENTRY_BYTES, VALUE_BYTES, Rendezvous, Store

Open = Callable[..., tuple[Rendezvous, int]]


@pytest.fixture
def meet() -> Iterator[Open]:
    """Serve a rendezvous at a free port for these callers, besides this machine."""
    served: list[Rendezvous] = []

    def serve(*peers: str) -> tuple[Rendezvous, int]:
        port = free_port()
        served.append(Rendezvous(port, peers))
        return served[-1], port

    yield serve
    for each in served:
        each.close()


def free_port() -> int:
    with socket.socket(socket.AF_INET6) as free:
        free.bind(("::", 0))
        return int(free.getsockname()[1])


def ask(port: int, method: str, path: str, body: bytes | None = None, source: str = "") -> tuple[int, bytes]:
    link = http.client.HTTPConnection("127.0.0.1", port, 10, source_address=(source, 0) if source else None)
    link.request(method, path, body)
    answer = link.getresponse()
    return answer.status, answer.read()


def test_what_one_task_puts_the_others_get_until_all_have_finished(meet: Open) -> None:
    _, port = meet()
    assert ask(port, "GET", "/global/0") == (404, b"")
    for rank in (b"0", b"1"):
        assert ask(port, "PUT", f"/global/{rank.decode()}", b"\0at " + rank)[0] == 200
        assert ask(port, "PUT", f"/global/rank_{rank.decode()}", b"host")[0] == 200
    assert ask(port, "GET", "/global/1") == (200, b"\0at 1")
    assert ask(port, "GET", "/cross_0/1")[0] == 404
    assert ask(port, "DELETE", "/global/0")[0] == 200
    assert ask(port, "GET", "/global/0")[0] == 200  # the other may still look
    assert ask(port, "DELETE", "/global/1")[0] == 200
    assert [ask(port, "GET", f"/global/{key}")[0] for key in ("0", "1", "rank_0")] == [404] * 3
    assert ask(port, "PUT", "/global/0", b"of the next init")[0] == 200


def test_nonsense_ends_nothing(meet: Open) -> None:
    _, port = meet()
    assert ask(port, "PUT", "/global/0", b"mine")[0] == 200
    for path in ("/", "/a", "/a/b/c", "a/b", "//b", "/a/" + "b" * 2000):
        assert ask(port, "PUT", path, b"")[0] == 400
    with socket.create_connection(("127.0.0.1", port), 10) as raw:
        raw.sendall(b"PUT /global/1 HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % (VALUE_BYTES + 1))
        assert b" 413 " in raw.recv(100)
    with socket.create_connection(("127.0.0.1", port), 10) as raw:
        raw.sendall(b"PUT /global/1 HTTP/1.1\r\nContent-Length: 9\r\n\r\nhalf")
    with socket.create_connection(("127.0.0.1", port), 10):  # says nothing, and holds nobody up
        assert ask(port, "GET", "/global/1")[0] == 404


def test_a_stranger_gets_no_answer(meet: Open) -> None:
    _, port = meet("127.0.0.3")
    assert ask(port, "PUT", "/global/0", b"mine", source="127.0.0.3")[0] == 200
    with pytest.raises((ConnectionError, http.client.RemoteDisconnected)):
        ask(port, "GET", "/global/0", source="127.0.0.2")
    assert ask(port, "GET", "/global/0")[0] == 200


def test_nobody_removes_or_changes_what_another_address_has_written(meet: Open) -> None:
    _, port = meet("127.0.0.2", "127.0.0.3")
    assert ask(port, "PUT", "/global/0", b"mine", source="127.0.0.2")[0] == 200
    ask(port, "DELETE", "/global/0", source="127.0.0.3")
    ask(port, "DELETE", "/global/7", source="127.0.0.3")
    assert ask(port, "PUT", "/global/0", b"theirs", source="127.0.0.3")[0] == 403
    assert ask(port, "PUT", "/global/0", b"mine", source="127.0.0.3")[0] == 200
    assert ask(port, "GET", "/global/0") == (200, b"mine")
    assert ask(port, "PUT", "/global/0", b"mine again", source="127.0.0.2")[0] == 200
    assert ask(port, "GET", "/global/0") == (200, b"mine again")


def test_those_who_connect_and_are_slow_hold_nobody_up(meet: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous, "CALLERS", 3)
    monkeypatch.setattr(rendezvous, "ANSWER_S", 1.0)
    _, port = meet("127.0.0.2", "127.0.0.3")
    with contextlib.ExitStack() as stack:
        for _ in range(10):
            slow = socket.create_connection(("127.0.0.1", port), 10, source_address=("127.0.0.3", 0))
            stack.enter_context(slow)
        assert ask(port, "GET", "/global/0", source="127.0.0.2")[0] == 404

        def is_answered() -> bool:
            with contextlib.suppress(OSError, http.client.HTTPException):
                return ask(port, "GET", "/global/0", source="127.0.0.3")[0] == 404
            return False

        until(is_answered, "the slow ones are cut off")


def test_who_leaves_before_the_answer_ends_nothing(meet: Open) -> None:
    """As a task that dies just then: head and value of the answer are two writes to a connection that is closed."""
    _, port = meet()
    assert ask(port, "PUT", "/global/0", b"mine")[0] == 200
    for _ in range(20):
        with socket.create_connection(("127.0.0.1", port), 10) as raw:
            raw.sendall(b"GET /global/0 HTTP/1.0\r\n")  # the end of the connection ends the head
    assert ask(port, "GET", "/global/0") == (200, b"mine")


@pytest.mark.parametrize("head", ["A: " + "x" * 60_000, "\r\n".join(["A: x"] * 60)], ids=["long", "many"])
def test_a_head_is_no_larger_than_horovods(meet: Open, head: str) -> None:
    """Python would take 6 MB, and a hundred callers at once."""
    _, port = meet()
    with socket.create_connection(("127.0.0.1", port), 10) as raw, contextlib.suppress(ConnectionError):
        raw.sendall(b"GET /global/0 HTTP/1.0\r\n" + head.encode() + b"\r\n\r\n")
        assert b" 431 " in raw.recv(100)
    assert ask(port, "GET", "/global/0")[0] == 404


def test_after_the_death_of_the_server_another_one_takes_the_port(meet: Open) -> None:
    first, port = meet()
    assert first._process is not None
    os.kill(first._process.pid, signal.SIGKILL)
    pid, _ = os.waitpid(first._process.pid, 0)
    assert first.reaped(pid)
    with pytest.raises(ConnectionRefusedError):
        ask(port, "GET", "/global/0")
    again = Rendezvous(port, ())
    assert ask(port, "GET", "/global/0")[0] == 404
    again.close()


def test_each_start_has_a_store_of_its_own_at_the_same_port(meet: Open) -> None:
    serving, port = meet()
    assert ask(port, "PUT", "/global/0", b"of the first attempt")[0] == 200
    serving.renew()
    assert ask(port, "GET", "/global/0")[0] == 404
    serving.close()
    with pytest.raises(ConnectionRefusedError):
        ask(port, "GET", "/global/0")


def test_what_a_host_that_restarts_first_has_written_is_still_there_once_rank_0_starts(host: Host) -> None:
    """The orders to start again come to each host by a way of its own: that of rank 0 may be the last."""
    port = free_port()
    env = {"HOROVOD_GLOO_RENDEZVOUS_PORT": str(port)}
    channel = host.start()
    fails_once = 'test "$TFLAUNCH_ATTEMPT" -gt 0 || { read -r _ <go; exit 3; }; exec sleep 600'
    os.mkfifo(host.work_dir / "go")
    running(channel, shell(fails_once, env=env, cwd=str(host.work_dir), rendezvous=["127.0.0.2"]))
    assert ask(port, "PUT", "/global/1", b"of the first attempt", source="127.0.0.2")[0] == 200
    (host.work_dir / "go").write_text("\n")
    channel.wait("exit")
    assert ask(port, "GET", "/global/1")[0] == 404
    assert ask(port, "PUT", "/global/1", b"of the second", source="127.0.0.2")[0] == 200
    channel.send("restart", tasks={"worker/0": 1})
    assert channel.wait("started")["attempt"] == 1
    assert ask(port, "GET", "/global/1") == (200, b"of the second")
    swept(channel, 0.0)


def test_the_store_ends_with_its_agent(meet: Open) -> None:
    """As with an agent that is killed: nobody tells the server."""
    port = free_port()
    agent = os.fork()
    if not agent:
        Rendezvous(port, ())
        os.kill(os.getpid(), 9)
    os.waitpid(agent, 0)

    def is_gone() -> bool:
        with socket.socket() as caller:
            return caller.connect_ex(("127.0.0.1", port)) != 0

    until(is_gone, "the store is gone")


def test_a_store_that_is_full_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tflaunch.agent.tasks.rendezvous.STORE_BYTES", ENTRY_BYTES + 10)
    store = Store()
    assert store.put("a", "0", b"12345678")
    assert not store.put("a", "1", b"")  # a key takes room, too
    store.finish("a", "0")
    assert store.put("a", "1", b"12345678")
