"""Programs that run in a task's own Python; sent to hosts as text, never imported there.

check_task.py        the task of `tflaunch check`: reports on its Python, its limits and TensorFlow
preloader.py         imports modules, and forks for the trials of `tflaunch sweep --preload`
stacks_site.py       the `sitecustomize` of every task: a thread that tells Python's stacks when it is asked
server/tf_server.py  the task of `tflaunch up`: a bare TensorFlow server
"""
