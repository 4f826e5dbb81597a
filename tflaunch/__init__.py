"""tflaunch starts distributed TensorFlow over SSH, watches it, and leaves nothing behind."""

__version__ = "0.2.0"
