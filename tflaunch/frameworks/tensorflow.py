"""TensorFlow: TF_CONFIG and the cluster flags, which each task gets that takes them."""

from __future__ import annotations

from tflaunch.frameworks.framework import Framework

FRAMEWORK = Framework(
    name="tensorflow",
    title="TensorFlow",
    packages=("tensorflow", "keras", "tf_keras", "tf_nightly"),
    other_names={"tensorflow_cpu": "tensorflow", "tensorflow_intel": "tensorflow"},
)
