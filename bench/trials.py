"""Trials of seconds, one after the other, of a real TensorFlow program: how many a minute."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator, Sequence

from bench.beds import TFLAUNCH
from bench.measure import Figures, Table, interleave
from bench.plan import Plan

COUNT = 12
OURS = "tflaunch sweep"
TRAINER = """\
import argparse

import tensorflow as tf


def train(lr):
    inputs = tf.random.stateless_normal((256, 32), seed=(1, 2))
    wanted = tf.reduce_sum(inputs, 1, keepdims=True)
    weights = tf.Variable(tf.zeros((32, 1)))
    for _ in range(100):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((inputs @ weights - wanted) ** 2)
        weights.assign_sub(lr * tape.gradient(loss, weights))
    return float(loss)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float)
    print("loss", train(parser.parse_args().lr))
"""
# As Optuna's first example has it: all trials in one process.
OPTUNA = """\
import sys

import optuna
from trainer import train

study = optuna.create_study()
study.optimize(lambda trial: train(trial.suggest_float("lr", 0.001, 0.1, log=True)), n_trials=int(sys.argv[1]))
assert len(study.trials) == int(sys.argv[1])
"""


def trials(plan: Plan) -> Iterator[Table]:
    """On this machine alone, one at a time."""
    table = Table(f"{COUNT} short trials with TensorFlow", OURS, ("trials/min", "CPU s"))
    lacking = [name for name in ("tensorflow", "optuna") if importlib.util.find_spec(name) is None]
    if lacking:
        table.remarks.append(f"not installed: {', '.join(lacking)}")
        yield table
        return
    hosts = plan.lab.file(
        "trials/hosts.yaml", f"hosts:\n- {{name: me, connection: local, python: {sys.executable}}}\n"
    )
    trainer = plan.lab.file("trials/trainer.py", TRAINER)
    optuna = plan.lab.file("trials/loop.py", OPTUNA)

    def method(*words: str) -> Callable[[], Figures]:
        def once() -> Figures:
            cost = plan.lab.run(*words)
            return {"trials/min": 60 * COUNT / cost.wall_s, "CPU s": cost.client_s + cost.hosts_s}

        return once

    drawn: Sequence[str] = ("--metric", "loss", "--random", "lr=0.001..0.1:log", "--trials", str(COUNT))
    sweep = (
        TFLAUNCH,
        "sweep",
        hosts,
        trainer,
        *drawn,
        "--gpus-per-trial",
        "0",
        "--code-dir",
        trainer.rpartition("/")[0],
    )
    methods = {
        OURS: method(*sweep),
        "tflaunch sweep --preload tensorflow": method(*sweep, "--preload", "tensorflow"),
        "Optuna's loop in one process": method(sys.executable, optuna, str(COUNT)),
    }
    yield interleave(table, methods, plan.rounds, plan.tell)
