"""Requests of tasks in which addresses and ports are left open, for a detached run that may move to spare hosts.

Each seat (the tasks that one host has at first) has a mark that stands for its address, each task one for its port.  A
mark stands nowhere else, so that to fill it in changes nothing that the user wrote.  The launcher makes the marks; it
and the agents fill them in.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Mapping


def values(
    marks: "Mapping[str, str]", seats: "Mapping[str, Mapping[str, Any]]", places: "Mapping[str, str]"
) -> "Dict[str, str]":
    """What each mark stands for while the seats are on these hosts: `places` maps a seat to another host than its own.

    Raises KeyError for a place that is not in `seats`.
    """
    found = {}
    for seat, spots in seats.items():
        spot = spots[places.get(seat, seat)]
        found[marks[seat]] = str(spot["address"])
        for task, port in spot["ports"].items():
            if task in marks:
                found[marks[task]] = str(port)
    return found


def fill(request: "Mapping[str, Any]", standing: "Mapping[str, str]") -> "Dict[str, Any]":
    """That request, with what each mark stands for; `standing` is from `values`."""

    def filled(text: str) -> str:
        for mark, value in standing.items():
            if mark in text:
                text = text.replace(mark, value)
        return text

    argv = [filled(word) for word in request["argv"]]
    return dict(request, argv=argv, env={name: filled(text) for name, text in request["env"].items()})


def at(requests: "Mapping[str, List[Any]]", host: str, places: "Mapping[str, str]") -> "List[Any]":
    """Of the requests that a host holds, by seat, those of the seats that are there."""
    return [each for seat, mine in requests.items() if places.get(seat, seat) == host for each in mine]
