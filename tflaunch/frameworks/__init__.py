"""What each framework's programs look like, and what its own launcher would tell them: pure; shipped to hosts.

framework.py   what there is to say of a framework
tensorflow.py, torch.py, jax.py, horovod.py   a framework each
table.py       all of them
"""
