"""TensorFlow: TF_CONFIG and the cluster flags, which each task gets that takes them."""

from __future__ import annotations

from tflaunch.frameworks.framework import Framework

# Where Keras 3 lacks what a program calls under a strategy over several machines.
KERAS_ADVICE = (
    "use Keras 2 (tf_keras in --requirements, and --env TF_USE_LEGACY_KERAS=1), or a training loop of your own "
    "(strategy.run)"
)
FRAMEWORK = Framework(
    name="tensorflow",
    title="TensorFlow",
    packages=("tensorflow", "keras", "tf_keras", "tf_nightly"),
    other_names={"tensorflow_cpu": "tensorflow", "tensorflow_intel": "tensorflow"},
)
