"""What the tasks of a run have written, in a sentence once the run has succeeded: which files, and how to get them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from tflaunch.hosts import Host, fold
from tflaunch.inputs.patterns import EVERYTHING, Pattern, Wish
from tflaunch.runs.fetch_pipeline import Pipeline
from tflaunch.runs.fetch_requests import FoundFile
from tflaunch.runs.fetch_result import Fetched
from tflaunch.runs.fetch_search import Search
from tflaunch.sessions.group import Sessions, Stopped
from tflaunch.sessions.watcher import Watcher
from tflaunch.text.numbers import agreeing, amount
from tflaunch.text.safe import one_line

ASKED_S = 2.0  # the end of a run waits no longer for it
_NAMES = 4
_NAME_COLUMNS = 40
_ANY_SIZE = 2**63


def tell_written(
    run_id: str, sessions: Sessions, hosts: Collection[Host], dial: Callable[[str], None], watcher: Watcher
) -> None:
    """Note what the tasks have written on these hosts, if it is anything and the hosts answer within ASKED_S.

    In a `workdir:` lie files that the run did not write, so nothing is said of hosts that have one.  Ctrl-C ends it.
    """
    names = sorted(host.name for host in hosts if host.workdir is None and host.name in sessions.by_host)
    if not names:
        return
    wish = Wish((Pattern.parse(EVERYTHING),))
    search = Search(names, wish, Fetched(run_id, ""))
    pipeline = _Quiet(sessions, names, dial, watcher)
    try:
        steps = {name: [search.find(name, _ANY_SIZE)] for name in names}
        whole = pipeline.work(steps, pipeline.awake_s + ASKED_S) and not pipeline.unreached
    except Stopped:
        return
    found = {host: files for host, files in search.found.items() if files}
    if found:
        lasting = not any(host.slot for host in hosts)
        watcher.note(written(run_id, found, whole=whole, lasting=lasting))


class _Quiet(Pipeline):
    """Says nothing of hosts that come and go: agents leave once their run is over, and visits answer in their place."""

    def unreachable(self, host: str, reason: str) -> None:
        """Nothing."""

    def back(self, host: str, away_s: float) -> None:
        """Nothing."""


def written(
    run_id: str, found: Mapping[str, Mapping[str, FoundFile]], *, whole: bool, lasting: bool = True
) -> str:
    """The sentence; `found`: host -> path -> file.  `whole`: those are all.  `lasting`: they do not end with slots."""
    tops = sorted({_top(path) for files in found.values() for path in files})
    shown = [
        one_line(top if len(top) <= _NAME_COLUMNS else f"{top[:_NAME_COLUMNS]}…") for top in tops[:_NAMES]
    ]
    if len(tops) > _NAMES:
        shown.append(f"{len(tops) - _NAMES} more")
    names = shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"
    count = sum(map(len, found.values()))
    size = sum(file.size for files in found.values() for file in files.values())
    least = "" if whole else "at least "
    files = f"{least}{count:,} file{agreeing(count, '', 's')}, {amount(size)}"
    them = agreeing(count, "it", "them")
    told = f"the tasks wrote {names} on {fold(found)} ({files})"
    if not lasting:
        return f"{told}, and the end of the slots removes {them}; to copy {them} here next time: --fetch='{EVERYTHING}'"
    return f"{told}; to copy {them} here: tflaunch fetch {run_id}"


def _top(path: str) -> str:
    """`model.keras`, or `tb/` for all that is below a directory."""
    name, slash, _ = path.partition("/")
    return name + slash
