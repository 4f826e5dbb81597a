"""Batch inference on many hosts: every worker loads the same SavedModel and reads its own part of the files.

The workers do not talk to each other: worker i of n takes every n-th file, and writes one output for each.  Choose
it whenever a trained model is to be applied to more data than one machine should read.

    tflaunch run hosts.yaml examples/batch_inference.py --ps 0 --no-flags -- \
        --model /data/model --inputs '/data/in/*.npy' --outputs /data/out

`--ps 0` because nothing is trained, `--no-flags` because TF_CONFIG says which worker this is, and of how many.  The
paths are on the hosts, on a disk that all of them see.  To try it on one machine, make a model and some files first:

    python examples/batch_inference.py --demo /tmp/inference
    tflaunch run hostfiles/local.yaml examples/batch_inference.py --ps 0 --workers 2 --no-flags -- \
        --model /tmp/inference/model --inputs '/tmp/inference/in/*.npy' --outputs /tmp/inference/out

An output is there whole or not at all, and a file that has one is not read again: after a failure the same line,
with however many workers, does what is left.  `--restarts 3 --restart task` does so by itself, and only for the
worker that failed.  A file that cannot be read is named, the others are done, and the worker ends with an error.
"""

import argparse
import contextlib
import glob
import json
import os
import sys
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow as tf


def parse_flags(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0], allow_abbrev=False)
    parser.add_argument(
        "--model", type=Path, help="directory of a SavedModel with a signature serving_default"
    )
    parser.add_argument("--inputs", help="pattern of .npy files, each an array with a row for each example")
    parser.add_argument("--outputs", type=Path, help="directory for the outputs, named as the inputs")
    parser.add_argument("--batch_size", type=int, default=256, help="rows at a time (%(default)s)")
    parser.add_argument("--demo", type=Path, metavar="DIR", help="only make a model and inputs in DIR")
    flags = parser.parse_args(argv)
    if not flags.demo and not (flags.model and flags.inputs and flags.outputs):
        parser.error("give --model, --inputs and --outputs, or --demo DIR to make something to try it on")
    return flags


def make_demo(directory):
    """Write a model that sums up the squares of each row, and 20 files of 1000 rows."""

    class SumOfSquares(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([None, 4], tf.float32, name="x")])
        def __call__(self, x):
            return {"y": tf.reduce_sum(x * x, axis=1)}

    model = SumOfSquares()
    tf.saved_model.save(model, directory / "model", signatures=model.__call__)
    (directory / "in").mkdir(exist_ok=True)
    rng = np.random.default_rng(0)
    for number in range(20):
        np.save(directory / "in" / f"{number:03d}.npy", rng.normal(size=(1000, 4)).astype(np.float32))


def infer(path, output, predict, batch_size):
    """Apply `predict` to all rows of the file `path`; `output` appears when all of it is written."""
    rows = np.load(path, mmap_mode="r")  # a file may be larger than the memory
    results = [predict(rows[start : start + batch_size]) for start in range(0, len(rows), batch_size)]
    # The name tells apart what two workers write, if an earlier one is still alive; *.npy does not match it.
    partial = output.with_name(f".{output.name}.{os.uname().nodename}-{os.getpid()}")
    try:
        with partial.open("wb") as file:
            np.save(file, np.concatenate(results))
            file.flush()
            os.fsync(file.fileno())
        partial.replace(output)
    finally:
        with contextlib.suppress(FileNotFoundError):
            partial.unlink()


def main():
    flags = parse_flags()
    if flags.demo:
        make_demo(flags.demo)
        return 0
    config = json.loads(os.environ.get("TF_CONFIG", "{}"))  # without it: one worker, by hand
    index = config.get("task", {}).get("index", 0)
    workers = len(config.get("cluster", {}).get("worker", ["me"]))

    paths = sorted(glob.glob(flags.inputs))  # noqa: PTH207  (Path.glob takes no absolute pattern)
    if not paths:
        print(f"no file here is {flags.inputs}", file=sys.stderr, flush=True)
        return 1
    flags.outputs.mkdir(parents=True, exist_ok=True)
    mine = {path: flags.outputs / Path(path).name for path in paths[index::workers]}
    left = [path for path, output in mine.items() if not output.exists()]
    print(f"{len(left)} of {len(mine)} files are to be done, of {len(paths)} in all", flush=True)

    loaded = tf.saved_model.load(flags.model)  # its variables live as long as this name
    signature = loaded.signatures["serving_default"]
    ((input_name, _),) = signature.structured_input_signature[1].items()
    (output_name,) = signature.structured_outputs

    def predict(rows):
        return signature(**{input_name: tf.constant(rows)})[output_name].numpy()

    failed = 0
    for number, path in enumerate(left, start=1):
        try:
            infer(path, mine[path], predict, flags.batch_size)
        except (OSError, ValueError, tf.errors.InvalidArgumentError) as error:
            failed += 1
            print(f"{path}: {error}", file=sys.stderr, flush=True)
        if number % max(1, len(left) // 10) == 0:
            print(f"{number} of {len(left)}", flush=True)
    print(f"{len(left) - failed} files done, {failed} failed", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
