"""Questions to hosts without a run: `gpus`, `check`, `init`.

survey.py          asks many hosts for their facts, once or again and again
gpu_overview.py    the GPUs in the answers: filtered, sorted, counted; as JSON, CSV and one line
gpu_users.py       who holds which GPUs, of all users

check_run.py       `check` on the hosts, step by step
check_replies.py   waits for what the agents of a check send
check_calls.py     which host calls which in a check, and what came of it
check_bandwidth.py how much the hosts can send to each other
check_answers.py   what the hosts answered, side by side
check_findings.py  what is wrong in these answers, and what to do about it

hostfile_text.py   the hostfile that `init` writes
"""
