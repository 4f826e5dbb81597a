"""What tflaunch costs, beside what others cost for the same work: `python -m bench` on a test bed of this machine.

Every measurement interleaves tflaunch and its peers: each round runs each of them once, on the same hosts, and what
is told is the median of all rounds.  The hosts share this machine's cores with the launcher: their CPU time is told
apart.  Nothing here is known to tflaunch, which runs with the defaults that users get.
"""
