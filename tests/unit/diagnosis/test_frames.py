"""Which frame of a stack is the user's."""

from __future__ import annotations

import pytest

from tflaunch.diagnosis.frames import is_own, own_frame, owned, place, short

LIBRARY = "/opt/python/3.11.7/lib/python3.11/"


@pytest.mark.parametrize(
    ("file", "own", "shown"),
    [
        ("mwms.py", True, "mwms.py"),
        ("data/reader.py", True, "data/reader.py"),
        ("/home/ada/lib/reader.py", True, "/home/ada/lib/reader.py"),
        ("/home/ada/lib/python/reader.py", True, "/home/ada/lib/python/reader.py"),
        ("<string>", True, "<string>"),
        ("<frozen runpy>", False, "<frozen runpy>"),
        (LIBRARY + "threading.py", False, "threading.py"),
        (LIBRARY + "concurrent/futures/thread.py", False, "concurrent/futures/thread.py"),
        (LIBRARY + "site-packages/keras/src/trainer.py", False, "keras/src/trainer.py"),
        ("/usr/lib/python3/dist-packages/yaml/loader.py", False, "yaml/loader.py"),
        ("venv/lib/python3.8/site-packages/x.py", False, "x.py"),
        ("/tmp/__autograph_generated_fileben417zu.py", False, "/tmp/__autograph_generated_fileben417zu.py"),
        ("", True, ""),
    ],
)
def test_whose_a_file_is(file: str, own: bool, shown: str) -> None:
    assert is_own(file) is own
    assert short(file) == shown


def test_the_innermost_frame_of_the_user() -> None:
    frames = [
        [LIBRARY + "threading.py", 629, "wait"],
        ["mwms.py", 26, "batches"],
        ["mwms.py", 40, "<module>"],
    ]
    found = own_frame(frames)
    assert found is not None
    assert place(found) == "mwms.py:26 in batches()"
    assert place(frames[2]) == "mwms.py:40 in <module>"
    assert own_frame(frames[:1]) is None


def test_a_name_of_64_kb_makes_no_long_sentence() -> None:
    assert len(place(["a" * 60_000, 2**62, "f" * 60_000])) < 1000


def test_a_text_that_a_library_has_compiled_is_not_the_users() -> None:
    compiled = [
        ["<string>", 59, "horovod_allreduce"],
        [LIBRARY + "site-packages/horovod/tensorflow/mpi_ops.py", 130, "_allreduce"],
        ["t.py", 18, "<module>"],
    ]
    assert owned(compiled) == [False, False, True]
    assert owned([["<string>", 3, "load"], ["<string>", 9, "<module>"]]) == [True, True]
    assert owned([["<string>", 3, "load"], ["t.py", 9, "<module>"]]) == [True, True]
