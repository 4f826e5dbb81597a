"""`gpus --watch` on a terminal: the GPUs of many hosts with graphs over time, and keys.

Pure, from answers and keys to lines
    history.py     use and memory of each GPU and each host over time; kept in memory only
    host_rows.py   the hosts as rows: filtered and ordered
    state.py       what the user looks at, and the keys that no other watch has
    layout.py      how wide each column is, and the lines of hosts and GPUs
    pages.py       the whole screen: the list of hosts, one host with its processes, the help
    survey_watch.py    asks the hosts, and shows them
"""
