"""`top`: the tasks and hosts of a run on a terminal, with graphs and keys.

table_rows.py   tasks, or hosts, as rows: their values over time, filtered and ordered
view.py         what the user looks at, and the keys that no other watch has
row_columns.py  which columns there is room for, and a row in them
drawing.py      the whole screen: the list, one task or host, the help
"""
