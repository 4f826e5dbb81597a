"""The program of `tflaunch up`: a bare TensorFlow server."""
