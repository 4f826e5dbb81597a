"""The switch between the machines of a bed: a bridge in a network namespace of its own, and what is wrong with it.

Faults of the network (a cut cable, a lost direction, a blocked port) are rules of the switch: both ends see
silence.  A firewall that *says* no is one of the host itself: its rules are in the host's own namespace.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
PYTHON = (sys.executable, "-I", "-S")


def start_machine(
    *,
    namespaces: tuple[str, ...],
    init: str,
    hostname: str = "",
    binds: tuple[tuple[str, str], ...] = (),
    share: tuple[str, ...] = (),
    errors: Path,
) -> subprocess.Popen[str]:
    """Start machine.py; it prints the pid of the first process, and goes on when it reads a line."""
    config = {
        "parent": os.getpid(),
        "namespaces": namespaces,
        "hostname": hostname,
        "binds": binds,
        "share": share,
        "init": init,
    }
    with errors.open("ab") as log:
        return subprocess.Popen(
            [*PYTHON, str(HERE / "machine.py"), json.dumps(config)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            start_new_session=True,  # Ctrl-C in the terminal of the tests is not for it
        )


def read_pid(process: subprocess.Popen[str], errors: Path) -> int:
    """The pid of its first process, in the numbers of the test."""
    assert process.stdout is not None
    said = process.stdout.readline()
    if not said.strip():
        raise RuntimeError(f"the machine did not start: {errors.read_text(errors='replace')}")
    return int(said)


def plug(process: subprocess.Popen[str]) -> None:
    """Tell the machine that its cable is there."""
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.close()


@dataclass(frozen=True)
class Rule:
    """What the switch loses: frames from port `source` to port `target` ("" is any), one in `1 / share`."""

    source: str
    target: str
    port: int = 0  # TCP, on the side of `target`; 0 is everything, ARP included
    longer: int = 0  # only packets of more bytes

    def __str__(self) -> str:
        words = [f'iifname "{self.source}"'] if self.source else []
        words += [f'oifname "{self.target}"'] if self.target else []
        words += [f"tcp dport {self.port}"] if self.port else []
        words += [f"meta length > {self.longer}"] if self.longer else []
        return " ".join([*words, "drop"])


class Switch:
    """The bridge, its ports and its rules."""

    def __init__(self, directory: Path) -> None:
        self._errors = directory / "switch.log"
        self._process = start_machine(namespaces=("net",), init="exec sleep 1000000000", errors=self._errors)
        self.pid = read_pid(self._process, self._errors)
        plug(self._process)
        self._rules: list[Rule] = []
        self._cables: dict[str, subprocess.Popen[str]] = {}  # port -> the slow cable that is plugged in
        self._bridges: list[str] = []
        self._bridge("bed")

    def _bridge(self, name: str) -> None:
        if name not in self._bridges:
            self._bridges.append(name)
            self.ip(f"link add {name} type bridge forward_delay 0 mcast_snooping 0", f"link set {name} up")

    def inside(self, *argv: str) -> list[str]:
        """The command that runs `argv` in the switch's network."""
        return ["nsenter", f"--net=/proc/{self.pid}/ns/net", *argv]

    def ip(self, *commands: str) -> None:
        """Run commands of ip(8); raises CalledProcessError."""
        self._run("ip", "-batch", "-", text="".join(f"{command}\n" for command in commands))

    def _run(self, *argv: str, text: str) -> None:
        done = subprocess.run(self.inside(*argv), input=text, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{argv[0]}: {done.stderr.strip()}\n{text}")

    # -- cables

    def connect(self, ports: dict[str, tuple[int, str]]) -> None:
        """A cable for each port: to `eth0` of the machine with that pid, with that hardware address."""
        commands = []
        for port, (pid, address) in ports.items():
            commands += [
                f"link add {port} type veth peer name eth0 address {address} netns {pid}",
                f"link set {port} master bed up",
            ]
        self.ip(*commands)

    def connect_fast(self, port: str, pid: int) -> None:
        """A cable from another bridge to `eth1` of the machine with that pid."""
        self._bridge("fast")
        self.ip(f"link add {port} type veth peer name eth1 netns {pid}", f"link set {port} master fast up")

    def unplug(self, port: str) -> None:
        """Pull the cable for good: the GPU at its other end vanishes, too."""
        self._take_cable(port)
        # The machine's end may have been quicker to go, and taken this one with it.
        for name in (port, f"{port}s"):
            subprocess.run(self.inside("ip", "link", "del", name), stderr=subprocess.DEVNULL, check=False)

    def delay(self, port: str, pid: int, delay_s: float, loss: float) -> None:
        """From now on every frame takes `delay_s` longer each way, and that share of them is lost."""
        if not self._take_cable(port):
            self.ip(f"link set {port} nomaster", f"link set {port} down", f"link set {port} name {port}s")
        gpu = f"{port}s"
        if not (delay_s or loss):
            self.ip(f"link set {gpu} down", f"link set {gpu} name {port}", f"link set {port} master bed up")
            return
        self.ip(f"link set {gpu} up")
        words = (str(os.getpid()), gpu, port, str(pid), str(delay_s), str(loss))
        cable = subprocess.Popen(
            self.inside(*PYTHON, str(HERE / "delay.py"), *words),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert cable.stdout is not None
        if cable.stdout.readline() != "ready\n":
            raise RuntimeError("the slow cable did not start")
        self._cables[port] = cable
        self.ip(f"link set {port} master bed up")

    def _take_cable(self, port: str) -> bool:
        """Take the slow cable away, and its tap, the port; False when there is none."""
        cable = self._cables.pop(port, None)
        if cable is not None:
            cable.kill()
            cable.wait()
            close_pipes(cable)
        return cable is not None

    # -- rules

    def lose(self, *rules: Rule) -> None:
        """Lose such frames from now on, without a word to anybody."""
        self._rules += [rule for rule in rules if rule not in self._rules]
        self._apply()

    def forget(self, *ports: str) -> None:
        """No rule any more that has to do with all of `ports`; without one, no rule at all."""
        self._rules = [rule for rule in self._rules if not {*ports} <= {rule.source, rule.target}]
        self._apply()

    def _apply(self) -> None:
        self._run("nft", "-f", "-", text=ruleset("bridge", "forward", map(str, self._rules)))

    def close(self) -> None:
        """End it."""
        for port in list(self._cables):
            self._take_cable(port)
        self._process.kill()
        self._process.wait()
        close_pipes(self._process)


def close_pipes(process: subprocess.Popen[str]) -> None:
    """Close the test's ends of its pipes."""
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()


def ruleset(family: str, hook: str, rules: object) -> str:
    """A table `bed` for nft(8) with exactly these rules in one chain, whatever it held before."""
    lines = "".join(f"    {rule}\n" for rule in rules)  # type: ignore[attr-defined]
    return (
        f"table {family} bed\ndelete table {family} bed\ntable {family} bed {{\n  chain rules {{\n"
        f"    type filter hook {hook} priority 0\n{lines}  }}\n}}\n"
    )
