"""Counts the lines with signs (tflaunch.diagnosis.signs) in a task's log, from look to look."""

import time

from tflaunch.diagnosis.signs import signs_in

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List

    from tflaunch.agent.tasks.logs import TaskLogs

READ_BYTES = 256 * 1024  # of each task in one look; what it wrote before these is passed over
LINE_CHARACTERS = 160  # of a line in a message ...
LINES_CHARACTERS = 48 * 1024  # ... and of all lines together: a message has its limit
_PARTS = str.maketrans("\r\b", "\n\n")  # a progress bar writes its line over and over


class LogSigns:
    """The signs in one attempt's log."""

    def __init__(self, logs: "TaskLogs", attempt: int) -> None:
        self.attempt = attempt
        self._logs = logs
        self._offset = 0  # what has been read
        self._found = {}  # type: Dict[str, List[Any]]  # sign -> count, last line, when it was read

    def read(self) -> None:
        """Take what the log has gained since the last time: whole lines, of the newest READ_BYTES."""
        end = self._logs.size(self.attempt)
        begins = self._logs.begins(self.attempt)[0]  # a log that was truncated is read from its new beginning
        start = max(self._offset, begins)
        passed_over = start < end - READ_BYTES
        if passed_over:
            start = end - READ_BYTES
        data = self._logs.read(self.attempt, start, READ_BYTES)
        whole = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        if not whole and len(data) == READ_BYTES:
            whole = len(data)  # a line without end
        self._offset = start + whole
        text = data[:whole].decode("utf-8", "replace").translate(_PARTS)
        if passed_over:
            text = text.partition("\n")[2]  # the first line may be half of one
        now = time.monotonic()
        for sign, lines in signs_in(text).items():
            count = self._found[sign][0] if sign in self._found else 0
            self._found[sign] = [count + len(lines), lines[-1].strip()[:LINE_CHARACTERS], now]

    def report(self, quiet_s: float) -> "Dict[str, List[Any]]":
        """Sign -> [how often, the last line, its age in s]; the log is silent since `quiet_s`."""
        now = time.monotonic()
        return {
            sign: [count, line, round(max(now - at, quiet_s), 1)]
            for sign, (count, line, at) in self._found.items()
        }


def shorten(reports: "List[Dict[str, List[Any]]]") -> None:
    """Cut the lines of all tasks so that they fit into one message."""
    entries = [entry for report in reports for entry in report.values()]
    most = LINES_CHARACTERS // max(1, len(entries))
    for entry in entries:
        entry[1] = entry[1][:most]
