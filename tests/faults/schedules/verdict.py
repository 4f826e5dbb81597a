"""What must hold after a schedule: nothing is left, and exit code, records and words tell one story."""

from __future__ import annotations

import json
import re
import signal
import time
from typing import Any

from tests.faults import SHOWN, count
from tests.faults.schedules.play import KILLED, LEASE_S, LINES, Play
from tests.support.bed import BedHost
from tests.support.launcher import Done, Running
from tflaunch.agent.host.guard import FIRST_LEASE_S
from tflaunch.cli.exit_codes import FAILED, OF_VERB, SIGNALLED

OVER_S = LEASE_S + 15.0  # from the last fault, and what made it good, to the end of all
NOT_STARTED = (
    65,
    69,
    70,
)  # the job does not fit the hosts that are left, or a host does not answer, or start
OURS = (65, 66, 69, 70, 73, 74, 76)
# What `ps` and `status` call a run, and with which exit codes of `run` and `attach` that may stand together.
TOGETHER = {
    "succeeded": lambda code: code in (0, 76),
    "stopped": lambda code: code in (130, 143, 76, KILLED, *NOT_STARTED),
    "failed": lambda code: code not in (0, 130, 143),
    "ended": lambda code: code in (76, KILLED),
    "lost": lambda code: code in (76, KILLED, *NOT_STARTED),
    "unknown": lambda code: code in (76, KILLED, *NOT_STARTED),
}
# How a record says that a run with that exit code has ended.
STATUS = {0: "succeeded", 130: "interrupted", 143: "interrupted"}
WORDS = {"succeeded": "succeeded", "stopped": "interrupted", "failed": "failed"}
UNCHECKED = "could not check that nothing is left"
NO_RECORD = "no record says how this run ended"
SAID = r"^\W*{run} (succeeded|stopped|failed)\b"
# What the documents name: docs/outputs.md, the head of agent/host/rundir.py.
TOP = re.compile(r"tflaunch-0|tflaunch-leases|lost\+found|filler\d|last|\.probe")
IN_PARENT = re.compile(r"code|\.environments|[a-z][\w-]*-\w{6}")
IN_RUN = {
    *("agent.json", "guard.json", "plan.json", "events.jsonl", "samples.jsonl"),
    *("holds.json", "shipped.json", "agent.log"),
    *("logs", "work", "own", "python", "agent.sock"),
}
RESERVE = "reserve"  # until somebody comes, where nobody is left who could remove it
ELSEWHERE = ("/tmp", "/run", "/dev/shm", "/home/root")


def shell_code(command: Running) -> int:
    """As a shell tells it: Ctrl-C in the moment of its end kills a command."""
    code = command.process.returncode
    return 130 if code == -signal.SIGINT else code


class Verdict:
    """The checks, in the order in which they must be made."""

    def __init__(self, play: Play) -> None:
        self.play = play
        self.hosts = play.hosts
        self.lasting = [each for each in play.happened if each.for_s is None]
        self.code: int | None = None  # of the run; None: it was never told, or its launcher was killed

    def fail_unless(self, holds: object, what: str) -> None:
        assert holds, f"{what}\n{self.play.story()}"

    def give(self) -> None:
        """Check everything; raises AssertionError."""
        self.play.let_end()
        self.wait_for_the_end()
        self.code = self.code_of_the_run()
        self.check_codes()
        self.check_words()
        self.play.repair()
        self.check_places()
        self.check_work()
        self.check_records()
        self.check_next_run()

    # -- nothing is left

    def wait_for_the_end(self) -> None:
        """Of all commands, processes and leases; of the sockets that somebody could remove, too."""
        over_s = OVER_S + self.play.again_s
        if any(each.phase == "start" and each.name == "agent-hung" for each in self.lasting):
            over_s += FIRST_LEASE_S - LEASE_S  # perhaps nobody had told its guard yet how long the lease is
        deadline = time.monotonic() + over_s
        while left := self.left():
            self.play.watch()
            self.fail_unless(time.monotonic() < deadline, f"not over within {over_s:g} s: {'; '.join(left)}")
            time.sleep(0.2)  # looking at every process has its price

    def left(self) -> list[str]:
        """What is not over, in words."""
        commands = [verb for verb, each in self.play.commands() if each.process.poll() is None]
        found = [f"`{verb}` runs" for verb in commands]
        for host in self.hosts:
            found += [f"{host.name}: {process}" for process in host.processes()]
            if host.pid:
                found += [f"{host.name}: {gpu} is leased" for gpu in host.held_leases()]
            if not commands and not self.nobody_left(host):
                found += [
                    f"{host.name}: {path.name} is left"
                    for path in host.disk.glob("tflaunch-*/*/*/agent.sock")
                ]
        return found

    def nobody_left(self, host: BedHost) -> bool:
        """Whether nobody is left there who could remove a socket, or the agent's reserve."""
        faults = [each.fault for each in self.lasting if each.host and self.hosts[each.host - 1] is host]
        return any(each.agent_gone or each.host_gone or each.disk == "own" for each in faults)

    def check_places(self) -> None:
        """No file and no directory but what the documents name; nothing in agent.log."""
        for host in self.hosts:
            strange = [path for path in host.disk.iterdir() if not TOP.fullmatch(path.name)]
            for parent in host.disk.glob("tflaunch-0"):
                strange += [path for path in parent.iterdir() if not IN_PARENT.fullmatch(path.name)]
            for place in host.run_directories():
                known = IN_RUN | ({RESERVE} if self.nobody_left(host) else set())
                strange += [path for path in place.iterdir() if path.name not in known]
            for where in ELSEWHERE:
                strange += host.path(where).glob("*tflaunch*")
            strange += host.disk.glob("tflaunch-leases/queue/*")
            self.fail_unless(not strange, f"left on {host.name}: {[*map(str, strange)]}")
            for log in host.disk.glob("tflaunch-*/*/*/agent.log"):
                text = log.read_text(errors="replace")
                self.fail_unless("Traceback" not in text, f"{host.name}, agent.log:\n{text}")

    # -- what was told

    def code_of_the_run(self) -> int | None:
        """By which exit code the run has ended, as far as anybody was told."""
        play = self.play
        if not play.handed:
            code = shell_code(play.main)
            return None if code == KILLED else code
        told = self.told_by
        return shell_code(told) if told else None

    def check_codes(self) -> None:
        """Only documented codes, no traceback, and every failure has its reason in what has befallen the run."""
        for verb, each in self.play.commands():
            code = shell_code(each)
            self.fail_unless("Traceback" not in each.err + each.out, f"a traceback of {verb}")
            known = {row.code for row in OF_VERB[verb]}
            if verb == "attach":
                known |= {row.code for row in OF_VERB["run"]}
            if FAILED in known:
                known |= set(range(1, 64)) | {120}
            if SIGNALLED in known:
                known |= {128 + number for number in range(1, 65)}
            self.fail_unless(code in known or code == KILLED, f"{verb} ended with {code}")
        if self.code not in (None, 0):
            self.fail_unless(self.code in self.reasons(), f"nothing explains exit code {self.code}")

    def reasons(self) -> set[int]:
        """With which codes the run may end, by what has befallen it."""
        happened = self.play.happened
        codes = {code for each in happened if each.for_s is None for code in each.fault.codes}
        codes |= {code for each in happened if each.fault.lasts != "either" for code in each.fault.codes}
        codes |= {code for each in happened if each.fault.disk for code in each.fault.codes}
        if any(each.phase == "start" and not each.fault.mild for each in happened):
            codes |= {*NOT_STARTED, 76}
        if any(each.name == "launcher-killed" for each in happened):
            codes |= {76}  # nobody is there who could tell how it has ended
        if any(verb == "stop" for verb, _ in self.play.calls):
            codes |= {143}
        return codes

    def check_words(self) -> None:
        """What was said fits the code, and nobody says of a host out of reach that nothing is left there."""
        if self.code is None or self.told_by is None:
            return
        err = self.told_by.err
        said = re.findall(SAID.format(run=re.escape(self.play.run_id or "-")), err, re.MULTILINE)
        if said:
            self.fail_unless(self.fits(WORDS[said[-1]]), f"it says {said[-1]}, and ends with {self.code}")
        elif self.code not in (0, 130):  # a shell says nothing of Ctrl-C, either
            words = ("✗", NO_RECORD, UNCHECKED)
            self.fail_unless(any(word in err for word in words), f"not a word why it ends with {self.code}")
        self.fail_unless(self.code != 70 or UNCHECKED not in err, "70 says that nothing is left running")
        gone = [each for each in self.lasting if each.fault.out_of_reach and each.phase == "run"]
        if gone and said and self.code == 76:
            last = [line for line in err.splitlines() if self.play.run_id in line][-1]
            self.fail_unless("nothing is left running" not in last, "it cannot know that nothing is left")

    def fits(self, status: str) -> bool:
        """Whether a run of that status may end with the exit code: one that has succeeded may have left something."""
        return status == STATUS.get(self.code or 0, "failed") or (status, self.code) == ("succeeded", 76)

    @property
    def told_by(self) -> Running | None:
        """The command that has told how the run ended: not an `attach` that was ended, or reached nobody."""
        if not self.play.handed:
            return self.play.main
        ended = [
            each
            for verb, each in self.play.commands()
            if verb == "attach" and each.process.returncode not in (69, 130, KILLED)
        ]
        return ended[-1] if ended else None

    # -- the work

    def check_work(self) -> None:
        """Each line is there once; all of them where the run has succeeded."""
        whole = dict.fromkeys(self.play.works, 0)
        for host in self.hosts:
            for path in host.disk.glob("tflaunch-0/*/*/logs/*.log"):
                task = "/".join(path.name.partition(".")[0].rsplit("-", 1))
                if task in whole:
                    whole[task] = max(whole[task], count(task, path))
        if self.code == 0:
            missing = {task: lines for task, lines in whole.items() if lines != LINES}
            self.fail_unless(not missing, f"it has succeeded, but of {LINES} lines there are {missing}")
        for verb, each in self.play.commands():
            if verb in ("run", "attach"):
                self.check_shown(each)

    def check_shown(self, command: Running) -> None:
        """Numbers follow each other; a viewer may come late."""
        last: dict[str, int] = {}
        for task, number in SHOWN.findall(command.out):
            expected = last.get(task, int(number) - 1) + 1
            self.fail_unless(int(number) == expected, f"{task}: {number} is shown instead of {expected}")
            last[task] = int(number)
        missed = ("could not be used", "Its last lines, once it is back")
        whole = command is self.told_by and not any(words in command.err for words in missed)
        if self.code == 0 and whole and self.play.kind != "sweep":  # a trial may have run twice
            short = {task: last.get(task, 0) for task in self.play.works if last.get(task, 0) != LINES}
            self.fail_unless(not short, f"not all is shown: {short}")

    # -- the records

    def check_records(self) -> None:
        """`ps`, `status`, the hosts' journals, the launcher's record and `attach` agree with the code."""
        run = self.play.run_id
        if not run:
            return
        asked = {verb: self.play.ask(verb) for verb in ("ps", "status", "attach")}
        done = {verb: each.done() for verb, each in asked.items()}
        entry = next((each for each in self.document(done["ps"])["runs"] if each["run_id"] == run), None)
        if entry is None:  # no host knows it
            self.fail_unless(self.code in (None, *NOT_STARTED, 76, 130), "no host knows it any more")
            return
        self.fail_unless(not entry["alive"], f"ps says that it is alive: {entry['state']}")
        again = done["attach"].code
        state = entry["state"]
        told = {"exit code": self.code, "attach": again} if self.code is not None else {"attach": again}
        for who, code in told.items():
            what = f"ps says {state}; {who} is {code}; attach said {done['attach'].err}"
            self.fail_unless(TOGETHER[state](code), what)
        status = self.document(done["status"])
        self.fail_unless(status["state"] == state, f"ps says {state}, status says {status['state']}")
        outcomes = {"ps": entry["outcome"], "record": self.recorded(), **self.journals()}
        for who, outcome in outcomes.items():
            if outcome and self.code is not None and not self.unknown:
                found = (outcome["status"], outcome["exit_code"])
                agree = found[1] == self.code and self.fits(found[0])
                self.fail_unless(agree, f"{who} says {found}, the exit code is {self.code}")
        codes = {outcome["exit_code"] for outcome in outcomes.values() if outcome}
        self.fail_unless(len(codes) <= 1, f"more than one truth: {outcomes}")
        if codes:
            self.fail_unless(codes == {again}, f"attach ends with {again}, the records say {codes}")

    @property
    def unknown(self) -> bool:
        """Whether `attach` knew no more than that the run is over."""
        return self.code == 76 and self.told_by is not None and NO_RECORD in self.told_by.err

    def document(self, done: Done) -> Any:
        """What it printed for programs."""
        self.fail_unless(done.code == 0, f"exit code {done.code}\n{done.err}")
        return json.loads(done.out)

    def recorded(self) -> Any:
        """What the launcher's record says of the end; None where it has none."""
        path = self.play.bed.launcher.path(self.play.far.state / self.play.run_id / "outcome.json")
        return json.loads(path.read_text()) if path.exists() else None

    def journals(self) -> dict[str, Any]:
        """What each host was told of the end."""
        found = {}
        for host in self.hosts:
            for path in host.disk.glob(f"tflaunch-0/{self.play.run_id}/*/events.jsonl"):
                for line in path.read_text(errors="replace").splitlines():
                    if '"outcome"' in line and line.endswith("}"):
                        event = json.loads(line)
                        found[f"the journal of {host.name}"] = event.get("outcome")
        return found

    def check_next_run(self) -> None:
        """The same hosts take another run, with all their GPUs."""
        far = self.play.far
        script = far.script("print('well')\n", "next/next.py")
        words = (self.play.hostfile, script, "--ps=0", f"--workers={len(self.hosts)}", *self.play.ssh)
        done = far.run("run", *words, "--done=all", "--connect-timeout=20")
        self.fail_unless(done.code == 0, f"the next run: exit code {done.code}\n{done.err}")
