"""Everything that is shown, to people or as JSON; only here is rich imported.

While a command runs
    reporter.py        the methods by which the rest of tflaunch shows a run, and which class takes them
    terminal.py        for people: TextReporter; json_lines.py: for programs, one JSON object a line
    sweep.py           the same two for a sweep
    logs.py            what both do with the logs of tasks: whole lines, progress bars, ends in their turn
    phases.py          a line for each step of a run that is over, and a live line for the one that is not
    live.py            what stands at the end of a terminal: live lines, or a question
    task_lines.py      what stands before the lines of a task; which lines are still on the screen
    writer.py          the one thread that writes to stdout and stderr

Pages: made of facts, without I/O
    plan_page.py       the plan of a run
    code_page.py       the code that is shipped, and what stays on this machine
    failure_page.py    the hosts that failed, the problems of a file, any other error
    run_pages.py       how a run ended; servers, `--detach`, `stop`
    fetch_page.py      what `fetch` has brought
    runs_page.py       `ps`, `status`
    clean_page.py      `clean`
    check_page.py      `check`
    gpus_page.py       `gpus`; gpus_output.py asks for them and shows them, once or again and again
    gpus_table.py, gpus_states.py, gpus_topology.py    its parts
    sweep_page.py      the trials of a sweep
    log_tail.py        what the end of a task's log says of its failure

What pages are made with
    safe_text.py       lines of which no character acts on the terminal
    table.py           the one drawer of tables
    pen.py             signs, colours, and text for one stream
    screen.py          stdout, for a result that is shown at once
    words.py           numbers with their nouns
"""
