"""Watches over a run: asks the agents what their tasks do, has the rules say what is wrong, keeps the time limits.

Pure, and shipped to hosts: the coordinator watches over a detached run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tflaunch.diagnosis.hangs import Hangs
from tflaunch.diagnosis.lost_packets import LostPackets
from tflaunch.diagnosis.lost_peers import LostPeers
from tflaunch.diagnosis.nan_loss import NanLoss
from tflaunch.diagnosis.rule import Place, Watched
from tflaunch.diagnosis.slowness import Slowness
from tflaunch.diagnosis.stillness import Stillness
from tflaunch.diagnosis.strangers import Strangers
from tflaunch.diagnosis.thresholds import thresholds
from tflaunch.diagnosis.unready import Unready
from tflaunch.diagnosis.unshared import Unshared
from tflaunch.lifecycle.time_limits import Limits
from tflaunch.protocol.events import LimitNears, TaskStarted
from tflaunch.protocol.job import TaskId
from tflaunch.protocol.outcome import EndedByRule, HostLost, TaskExit, TimedOut

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any

    from tflaunch.diagnosis.rule import Rule, Sentence
    from tflaunch.protocol.events import Event

HELD = 32  # sentences that are left on the hosts for `status`
LONGEST = 4000  # characters of a sentence: a host may have files and functions with names of 64 kB
AWAITED_S = 0.5  # how often the agents are asked while the launcher waits for all tasks to be ready


def rules_for(watched: Watched) -> dict[str, Rule]:
    """The rules that watch over a run, by name.

    Their order matters: a rule that knows the reason of a standstill stands before those that see only the standstill.
    """
    rules: dict[str, Rule] = {}
    stillness = Stillness(watched)
    if watched.gpus:  # shipped always, loaded only where there are GPUs
        from tflaunch.diagnosis.gpu_waits import GpuWaits
        from tflaunch.diagnosis.no_gpu import NoGpu
        from tflaunch.diagnosis.xids import Xids

        waits = GpuWaits(watched, stillness.explains)
        rules = {"xids": Xids(watched), "no_gpu": NoGpu(watched), "gpu_waits": waits}
    return {
        "lost_packets": LostPackets(watched),
        "strangers": Strangers(watched),
        **rules,
        "nan_loss": NanLoss(watched),
        "hangs": Hangs(watched),
        "unready": Unready(watched),
        "lost_peers": LostPeers(watched),
        "unshared": Unshared(watched),
        "stillness": stillness,
        "slowness": Slowness(watched),
    }


class Watchdog:
    """The Monitor (lifecycle/driver.py) of a run.

    `places` maps a task to its host, address and port; `names` maps each address that is a host name to its IP
    addresses; `limits_s` are the arguments of time_limits.Limits; `settings` are the other fields of rule.Watched, its
    `thresholds` those that the user has changed.  All times are of one steady clock.
    """

    def __init__(
        self,
        places: Mapping[str, Sequence[Any]],
        names: Mapping[str, Sequence[str]],
        limits_s: Mapping[str, float],
        settings: Mapping[str, Any],
    ) -> None:
        self._data = {
            "places": dict(places),
            "names": dict(names),
            "limits_s": dict(limits_s),
            "settings": dict(settings),
        }
        self._hosts = {task: place[0] for task, place in places.items()}
        chosen = thresholds(settings.get("thresholds", {}))
        rest = {name: value for name, value in settings.items() if name != "thresholds"}
        self._watched = Watched(
            {task: Place(*place) for task, place in places.items()}, names, chosen, **rest
        )
        self.rules = rules_for(self._watched)
        self._limits = Limits(places, **limits_s, gpus=self._watched.gpus, thresholds=chosen)
        self._looked = 0.0  # when the agents were last asked
        self.awaited = False  # the launcher waits for all tasks to be ready

    @property
    def ready(self) -> int:
        """How many tasks have opened their port."""
        return self._limits.ready

    def data(self) -> dict[str, Any]:
        """The arguments of the constructor, as JSON can hold them."""
        return self._data

    def begin(self, now: float, begun: float | None = None) -> None:
        """The tasks were released at `now`; `begun` is when the run began, if it has been planned anew since."""
        self._limits.begin(now, begun)
        self._looked = now  # the first look must not come at once

    def memory(self) -> dict[str, Any]:
        """What has happened, as JSON can hold it, for `resume`; left out is what the next looks show again."""
        rules = {name: rule.memory() for name, rule in self.rules.items()}
        return {"rules": rules, "limits": self._limits.memory()}

    def resume(self, memory: Any) -> None:
        """Continue from another watchdog's `memory`; call `begin` first.  Raises ValueError for a wrong one."""
        from tflaunch.protocol.fields import anything, check

        # An older launcher hands on the memory of its rules.
        check({"rules": {f"?{name}": anything for name in self.rules}, "limits": anything}, memory)
        for name, rule in self.rules.items():
            if name in memory["rules"]:
                rule.resume(memory["rules"][name])
        self._limits.resume(memory["limits"])

    def happened(self, event: Event, now: float) -> list[str]:
        """Take note of a task that has started or ended, or is gone with its host; ignore other events.

        Returns why a task that has failed may have done so, and what is odd of one that was stopped, as far as the
        rules know.
        """
        whys: list[str] = []
        if isinstance(event, TaskExit):
            if event.stopped:
                whys += filter(None, [rule.why_stopped(event, now) for rule in self.rules.values()])
            elif event.exit_code:
                whys += filter(None, [rule.why_ended(event, now) for rule in self.rules.values()])
            else:
                whys += _of_success(event)
            self._limits.exited(str(event.task))
            for rule in self.rules.values():
                rule.exited(event, now)
        elif isinstance(event, HostLost):
            for task in [task for task, host in self._hosts.items() if host == event.host]:
                self._limits.exited(task)
                for rule in self.rules.values():
                    rule.lost(task, now)
        elif isinstance(event, TaskStarted) and event.attempt:
            self._limits.started(str(event.task), now)
            for rule in self.rules.values():
                rule.started(str(event.task), now)
        return [why[:LONGEST] for why in whys]

    def said(self, host: str, type: str, fields: Mapping[str, Any], now: float) -> None:
        """Take note of an answer to `questions`; ignore other messages."""
        if type == "looked":
            known = {task: look for task, look in fields["tasks"].items() if task in self._hosts}
            self._limits.looked(known, now)
            if gpus := fields.get("gpus"):
                self._limits.looked_at_gpus(known, gpus, now - fields.get("gpus_age_s", 0.0))
            for each in self.rules.values():
                each.looked(host, {**fields, "tasks": known}, now)
        elif type in ("dialled", "inspected"):
            rule = self.rules.get(fields.get("asker", ""))
            if rule is not None:
                rule.answered(host, type, fields, now)

    def questions(self, hosts: Iterable[str], now: float) -> list[tuple[str, str, dict[str, Any]]]:
        """What to ask the agents now: (host, message type, fields); `hosts` are those that can be reached."""
        if now < self.wake_at():
            return []
        self._looked = now
        reachable = list(hosts)
        look = {"gpus_s": self._limits.gpu_look_s} if self._watched.gpus else {}
        asked: list[tuple[str, str, dict[str, Any]]] = [(host, "look", look) for host in reachable]
        for name, rule in self.rules.items():
            for host, type, fields in rule.questions(now):
                if host in reachable:
                    asked.append((host, type, {**fields, "asker": name}))
        return asked

    def sentences(self, now: float) -> list[Sentence]:
        """What the user should know since the last call about tasks that wait."""
        said: list[Sentence] = []
        explained: set[str] = set()
        for rule in self.rules.values():
            said += rule.sentences(now, explained)
            explained.update(rule.explains(now))
        return [each._replace(text=each.text[:LONGEST]) for each in said]

    def holds(self) -> tuple[list[str], list[str]]:
        """What is wrong with the run now, and what no rule can see."""
        rules = self.rules.values()
        held = dict.fromkeys(text[:LONGEST] for rule in rules for text in rule.holds())
        blind = dict.fromkeys(text[:LONGEST] for rule in rules for text in rule.blind())
        blind.update(dict.fromkeys(self._limits.blind()))
        return list(held)[:HELD], list(blind)[:HELD]

    def next_event(self, now: float) -> TimedOut | EndedByRule | LimitNears | None:
        """Why the run must end: a rule says so, or a time limit has been reached; or, once, that this is near."""
        for rule in self.rules.values():
            if (stop := rule.stop(now)) is not None:
                return EndedByRule(
                    stop.reason[:LONGEST], tuple(map(TaskId.parse, stop.tasks)), stop.exit_code
                )
        limit = self._limits.reached_limit(now)
        if limit is None:
            near = self._limits.nears(now)
            return near and LimitNears(near.left_s, tuple(map(TaskId.parse, near.tasks)))
        return TimedOut(limit.reason, tuple(map(TaskId.parse, limit.tasks)), limit.states)

    def wake_at(self) -> float:
        """The time by which there is something to ask."""
        rest_s = self._limits.look_s
        return self._looked + (min(AWAITED_S, rest_s) if self.awaited else rest_s)


def _of_success(exit: TaskExit) -> list[str]:
    """What the end of a task with 0 need not mean: that its program has ended, or has trained."""
    said = []
    if left := exit.facts.get("left_running"):
        said.append(
            f"{exit.task} on {exit.host} ended with 0 after {exit.seconds:.1f} s, and its program goes on in the"
            f" background ({', '.join(left)}), where it is ended with the run: a task lasts as long as its first"
            " process, so start the program without `&`, nohup, os.fork() or a daemon mode"
        )
    if done := exit.facts.get("nothing_left"):
        number, flag = done
        unit = "epoch" if "epoch" in flag.partition(" ")[0] else "step"
        said.append(
            f"{exit.task} on {exit.host} has trained nothing: its checkpoint is at {unit} {number}, and {flag} is the"
            " last one; a larger number trains on, another directory begins anew"
        )
    return said
