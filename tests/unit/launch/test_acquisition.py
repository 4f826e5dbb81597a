"""A place in the queue, in words."""

from __future__ import annotations

from tflaunch.launch.acquisition import Turn


def test_a_turn_in_words() -> None:
    assert str(Turn(1, (), 0, 2, ())) == "1st in line"
    turn = Turn(
        3, ("ada's run a", "bob's run b"), 1, 4, (("g1:0,2 g2:1", "eve's run e since 10:32"),), ("g3", "g4")
    )
    assert str(turn) == (
        "3rd in line, behind ada's run a, bob's run b; g1:0,2 g2:1 eve's run e since 10:32; g[3-4] cannot be asked"
    )
    places = [str(Turn(place, (), 0, 1, ())).split()[0] for place in (2, 4, 11, 12, 13, 21, 22, 101, 111)]
    assert places == ["2nd", "4th", "11th", "12th", "13th", "21st", "22nd", "101st", "111th"]
