"""tflaunch starts distributed TensorFlow over SSH, watches it, and leaves nothing behind."""

__version__ = "0.1.0"
