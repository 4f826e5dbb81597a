"""The directory that `tflaunch up` ships to the hosts as the code of its tasks."""
