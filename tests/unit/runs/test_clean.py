"""Which runs `tflaunch clean` removes."""

from __future__ import annotations

import pytest

from tests.support.ages import DAY_S
from tflaunch.inputs.amounts import seconds
from tflaunch.protocol.errors import UsageError
from tflaunch.runs.clean import Criteria, Kept, RunsPlace, Selection, full_names, select

GIB = 1 << 30


def kept(run: str, days: float, **fields: object) -> Kept:
    made = {
        **{"run_id": run, "bytes": GIB, "idle_s": days * DAY_S, "alive": False, "keep": "", "ended": True},
        **{"here": ("h1",), "hosts": ("h1",), **fields},
    }
    return Kept(**made)  # type: ignore[arg-type]


def place(*runs: Kept, name: str = "h1") -> RunsPlace:
    return RunsPlace((name,) if name else (), f"/var/tmp/{name}", runs)


def goes(chosen: Selection) -> dict[int, list[str]]:
    return {number: sorted(runs) for number, runs in chosen.goes.items()}


def test_what_is_older_goes_from_all_places_and_its_last_use_anywhere_counts() -> None:
    known = [
        place(kept("old", 20), kept("used", 20)),
        place(kept("used", 3), name="h2"),
        place(kept("old", 21), name=""),
    ]
    assert goes(select(known, Criteria(older_s=14 * DAY_S))) == {0: ["old"], 2: ["old"]}


def test_the_newest_stay_and_alone_that_means_all_others_go() -> None:
    known = [place(*(kept(f"run{days}", days) for days in range(5)))]
    assert goes(select(known, Criteria(keep_last=2))) == {0: ["run2", "run3", "run4"]}
    assert goes(select(known, Criteria(keep_last=0))) == {0: [f"run{days}" for days in range(5)]}
    chosen = select(known, Criteria(older_s=0.0, keep_last=4))
    assert goes(chosen) == {0: ["run4"]}
    assert chosen.stays["run3"] == "it is one of the newest 4"


def test_by_size_the_oldest_go_and_only_where_it_is_too_much() -> None:
    known = [
        place(*(kept(f"run{days}", days) for days in range(5))),
        place(kept("run4", 4), kept("big", 1, bytes=9 * GIB), name="h2"),
        place(kept("alive", 9, alive=True, bytes=8 * GIB), name="h3"),
    ]
    chosen = select(known, Criteria(max_bytes=3 * GIB))
    assert goes(chosen) == {0: ["run3", "run4"], 1: ["big", "run4"]}
    assert dict(chosen.too_large) == {2: 5 * GIB}
    assert goes(select(known, Criteria(max_bytes=3 * GIB, keep_last=4))) == {0: ["run3", "run4"], 1: ["run4"]}


def test_a_run_that_is_alive_anywhere_stays_everywhere() -> None:
    known = [place(kept("run", 99)), place(kept("run", 99, alive=True, keep="it is alive"), name="h2")]
    for criteria in (Criteria(older_s=1.0), Criteria(runs=("run",)), Criteria(max_bytes=0)):
        chosen = select(known, criteria)
        assert not chosen.goes
        assert chosen.stays == {"run": "it is alive on h2"}


def test_a_run_that_may_be_alive_where_nobody_was_asked_stays() -> None:
    lost = kept("run", 99, ended=False, hosts=("h1", "h2", "h3"))
    chosen = select([place(lost)], Criteria(older_s=1.0))
    assert (chosen.goes, dict(chosen.stays)) == ({}, {"run": "it may be alive on h[2-3], not asked"})
    asked = [place(lost), RunsPlace(("h2", "h3"), "/", ())]
    assert goes(select(asked, Criteria(older_s=1.0))) == {0: ["run"]}
    ended = place(kept("run", 99, hosts=("h1", "h2", "h3")))
    assert goes(select([ended], Criteria(older_s=1.0))) == {0: ["run"]}


def test_what_must_stay_in_one_place_goes_from_the_others() -> None:
    known = [place(kept("run", 99, keep="/data is mounted in it")), place(kept("run", 99), name="h2")]
    chosen = select(known, Criteria(runs=("run",)))
    assert goes(chosen) == {1: ["run"]}
    assert chosen.stays == {"run": "h1: /data is mounted in it"}


def test_names_and_lengths_of_time() -> None:
    known = [place(kept("trainer-aa", 1), kept("trainer-ab", 1))]
    assert full_names(["trainer-ab", "trainer-aa"], known) == ("trainer-ab", "trainer-aa")
    for name in ("trainer-", "nobody"):
        with pytest.raises(UsageError):
            full_names([name], known)
    assert [seconds(text) for text in ("90s", "30m", "12h", "7d", "2w", "1.5d")] == [
        *(90, 1800, 43200, 604800, 1209600, 129600)
    ]
    for text in ("d", "-1d", "1y", "d7"):
        with pytest.raises(ValueError, match="is not a time"):
            seconds(text)
