"""A program whose `fit` Keras 3 cannot do under its strategy is told so before its tasks start."""

from __future__ import annotations

import sys
from importlib.metadata import version

import pytest

from tests.support.launcher import Launcher

FITS = """
print("ran")
def train():
    import tensorflow as tf
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    model = tf.keras.Sequential()
    model.compile(optimizer="sgd", loss="mse")
    model.fit(None)
"""
WARNING = f"Keras {version('keras')} has no fit under MultiWorkerMirroredStrategy (fits.py:8)"


def hosts(launcher: Launcher, **settings: object) -> str:
    here = {"connection": "local", "python": sys.executable, **settings}
    return str(launcher.hostfile([{"name": "a", **here}, {"name": "b", **here}]))


def test_it_is_told_once_for_all_hosts_before_the_tasks_start(launcher: Launcher) -> None:
    done = launcher.run("run", hosts(launcher), launcher.script(FITS, name="fits.py"), "--workers=4").ran()
    assert done.sentences.count(WARNING) == 1, done.sentences
    assert "a,b: " + WARNING in done.sentences
    assert "tf_keras in --requirements, and --env TF_USE_LEGACY_KERAS=1" in done.sentences
    assert done.err.index("Keras") < done.err.index("training")
    assert done.out.count("ran") == 4


def test_a_dry_run_which_does_not_look_says_what_holds_for_keras_3(launcher: Launcher) -> None:
    words = ("run", hosts(launcher), launcher.script(FITS, name="fits.py"), "--dry-run")
    told = "if the hosts have Keras 3: it has no fit under MultiWorkerMirroredStrategy (fits.py:8)"
    assert told in " ".join(launcher.run(*words).ran().out.split())
    assert "Keras" not in launcher.run(*words, "--env=TF_USE_LEGACY_KERAS=1").ran().out


def test_it_is_told_for_the_environment_that_setup_makes(launcher: Launcher) -> None:
    (launcher.code / "bin").mkdir()
    wrapper = launcher.code / "bin" / "mine"
    wrapper.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    wrapper.chmod(0o755)
    there = hosts(launcher, python="mine", setup=[f"PATH={launcher.code}/bin:$PATH"])
    done = launcher.run("run", there, launcher.script(FITS, name="fits.py"), "--workers=2").ran()
    assert WARNING in done.sentences


@pytest.mark.parametrize(
    ("words", "settings", "text"),
    [
        (("--env=TF_USE_LEGACY_KERAS=1",), {}, FITS),
        ((), {"env": {"TF_USE_LEGACY_KERAS": "1"}}, FITS),
        ((), {"setup": ["export TF_USE_LEGACY_KERAS=1"]}, FITS),
        ((), {}, "import os\nos.environ['TF_USE_LEGACY_KERAS'] = '1'\n" + FITS),
        ((), {}, FITS.replace("import tensorflow as tf", "import tensorflow as tf, tf_keras")),
        ((), {}, FITS.replace("model.fit(None)", "strategy.run(None)")),
        ((), {}, FITS.replace("MultiWorkerMirroredStrategy", "MirroredStrategy")),
        ((), {}, FITS.replace('model.compile(optimizer="sgd", loss="mse")', 're.compile("sgd", flags=2)')),
    ],
)
def test_nothing_is_told_where_fit_works(
    launcher: Launcher, words: tuple[str, ...], settings: dict[str, object], text: str
) -> None:
    script = launcher.script(text, name="fits.py")
    done = launcher.run("run", hosts(launcher, **settings), script, "--workers=2", "--ps=0", *words).ran()
    assert "Keras" not in done.sentences
