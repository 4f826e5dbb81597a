"""Everything that people are shown; only here is rich imported.

While a command runs
    opening.py         chooses the reporter: that for people, or for programs (tflaunch.documents)
    terminal.py        for people: TextReporter
    screen_lines.py    what it writes and draws
    sweep_screen.py    the same two for a sweep
    phases.py          the steps of a run: a line for each that is over, a live line for the one in progress
    phase_words.py     what these steps are called
    footer.py          the last line while the tasks run
    live.py            the last lines of the terminal: live lines, or a question
    alike.py           lines that several tasks write alike: the first, and how many more
    task_lines.py      the prefix of a task's log lines; which lines are still on the screen

Pages: what each command shows, as lines
    plan_page.py       the plan of a run
    code_page.py       the files that are shipped, and those that stay on this machine
    failure_page.py    the hosts that failed, the problems of a file, any other error
    run_pages.py       how a run ended; the servers of `up`, `--detach`, `stop`
    fetch_page.py      what `fetch` has brought
    runs_page.py       `ps`, `status`
    stacks_page.py     `stacks`
    report_page.py     `report`; report_html.py: the same as a page for a browser, of report_files/
    clean_page.py      `clean`
    check_page.py      `check`
    config_page.py     `config`
    gpus_page.py       `gpus`; gpus_output.py asks the hosts and prints the page, once or repeatedly
    gpu_watch/         `gpus --watch` on a terminal: graphs, keys; run_top/: `top`
    gpu_users_page.py  `gpus --all-users`
    gpus_table.py, gpus_states.py, gpus_topology.py    the parts of that page
    sweep_page.py      the trials of a sweep; trial_values.py: their parameters' values, in little room

What pages are made with
    safe_text.py       lines without characters that act on the terminal
    graph.py           values over time, in blocks
    text_table.py      draws all tables
    pen.py             signs and colours; renders lines as text for one stream
    list_view.py       what the user of a watch looks at, and what each key does: a list, one row, the help
    watch_app.py       keys, window and Ctrl-Z of a watch, by textual, which only this file imports
    cell_changes.py    the bytes that turn one screen of it into the next
    screen.py          stdout, for a result that is shown at once
"""
