"""Makes the models of test_spark_predict.py in a directory, and what they themselves say: `python THIS DIRECTORY`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np

os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"

import keras
import tensorflow as tf

ROWS = 10_000


class Several(tf.Module):
    """A model of our own, with a signature for each kind of input."""

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="text")])
    def text(self, text):  # type: ignore[no-untyped-def]
        return {"upper": tf.strings.upper(text), "length": tf.strings.length(text)}

    @tf.function(input_signature=[tf.TensorSpec([4, 2], tf.int32, name="x")])
    def four(self, x):  # type: ignore[no-untyped-def]
        return {"sum": tf.reduce_sum(x, axis=1), "square": tf.cast(x[:, :, None] * x[:, None, :], tf.int64)}

    @tf.function(input_signature=[tf.TensorSpec([None, 2, 3], tf.float32, name="image")])
    def image(self, image):  # type: ignore[no-untyped-def]
        return {"half": tf.cast(image[:, 0], tf.float16), "turned": tf.transpose(image, [0, 2, 1])}

    @tf.function(
        input_signature=[tf.TensorSpec([None], tf.float32, name="x"), tf.TensorSpec([], tf.float32, "by")]
    )
    def scaled(self, x, by):  # type: ignore[no-untyped-def]
        return {"y": x * by}

    @tf.function(input_signature=[tf.TensorSpec([None], tf.float32, name="x")])
    def odd(self, x):  # type: ignore[no-untyped-def]
        return {"mean": tf.reduce_mean(x), "wave": tf.complex(x, x), "y": x}


def main(directory: Path) -> None:
    keras.utils.set_random_seed(1)
    scores = keras.Sequential(
        [
            keras.Input((4,), name="features"),
            keras.layers.Dense(8, "relu"),
            keras.layers.Dense(3, "softmax", name="scores"),
        ]
    )
    scores.save(directory / "scores.keras")
    scores.save(directory / "scores.h5")
    scores.export(directory / "scores", verbose=False)
    rows = np.random.default_rng(1).normal(size=(ROWS, 4)).astype(np.float32)
    np.save(directory / "rows.npy", rows)
    np.save(directory / "said.npy", scores.predict(rows, verbose=0))

    width = keras.Input((1,), name="width")
    code = keras.Input((), dtype="int32", name="code")
    wide = keras.layers.Concatenate()([width, keras.layers.Embedding(10, 2)(code)])
    price = keras.layers.Dense(1, name="price")(wide)
    kind = keras.layers.Dense(2, name="kind")(wide)
    two = keras.Model([width, code], [price, kind])
    two.save(directory / "two.keras")
    given = [rows[:100, :1], np.arange(100, dtype=np.int32) % 10]
    np.savez(directory / "two.npz", *two.predict(given, verbose=0))

    several = Several()
    signatures = {name: getattr(several, name) for name in ("text", "four", "image", "scaled", "odd")}
    tf.saved_model.save(several, directory / "several", signatures)


main(Path(sys.argv[1]))
