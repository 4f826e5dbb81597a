"""What a record keeps of a variable of --env, and of a URL with a password."""

from __future__ import annotations

import shlex

import pytest

from tflaunch.runs.hidden_values import without_values

SECRET = "hf_abcdef123"


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ("run h t.py -eCookie=c2VjcmV0==", "run h t.py -eCookie=***"),
        (f"run h t.py --env TOKEN={SECRET} -q", "run h t.py --env TOKEN=*** -q"),
        (f"run h t.py --env=TOKEN={SECRET}=1", "run h t.py --env=TOKEN=***"),
        (f"run h t.py -e TOKEN={SECRET}", "run h t.py -e TOKEN=***"),
        (f"run h t.py -eTOKEN={SECRET}", "run h t.py -eTOKEN=***"),
        (f"run h t.py -qe TOKEN={SECRET}", "run h t.py -qe TOKEN=***"),
        (f"run h t.py --env 'TOKEN=a\n{SECRET}'", "run h t.py --env TOKEN=***"),
        (f"run h t.py --job-env chief=TOKEN={SECRET}", "run h t.py --job-env chief=TOKEN=***"),
        (f"run h t.py --job-env=chief=TOKEN={SECRET}", "run h t.py --job-env=chief=TOKEN=***"),
        ("run h t.py --env TOKEN --job-env chief=TOKEN", "run h t.py --env TOKEN --job-env chief=TOKEN"),
        ("run h t.py --env-file=a=b --env-file c=d", "run h t.py --env-file=a=b --env-file c=d"),
        ("run h t.py --workers=3 -- --env A=b", "run h t.py --workers=3 -- --env A=b"),
        ("sweep h t.py --storage mysql://u:p/w@h/db", "sweep h t.py --storage 'mysql://u:***@h/db'"),
        ("sweep h t.py --storage=redis://:pw@h:1/0", "sweep h t.py --storage=redis://:***@h:1/0"),
        ("sweep h --storage=mysql://h/db?password=p t.py", "sweep h --storage=mysql://h/db?*** t.py"),
        ("sweep h --storage mysql://u@h:1/db?a=b t.py", "sweep h --storage mysql://u@h:1/db?a=b t.py"),
        ("sweep h --storage sqlite:///a.db t.py", "sweep h --storage sqlite:///a.db t.py"),
    ],
)
def test_of_a_secret_only_the_name_is_left(words: str, shown: str) -> None:
    assert without_values(shlex.split(words)) == tuple(shlex.split(shown))
