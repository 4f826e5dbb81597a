"""What makes runs hang, fail or crawl, made to happen with real TensorFlow, and whether tflaunch says so.

`scripts/diagnosis` plays the causes, each as a run of its own with tflaunch's default settings on hosts of its own
(tests.support.bed), and gives each a score:

    2  cause and place are named, and the fix is said or evident; or tflaunch refused to start such a run
    1  the place or a symptom is named
    0  nothing is said, or something misleading
    -  the fault did not come about, so that there is nothing to score

It judges by what tflaunch itself says on stderr.  What it quotes of a log counts as the cause that a failure has, but
never as a place or a fix.  A healthy run scores nothing; it must end with 0, and tflaunch must warn of nothing.

causes.py     what a cause is
trainers.py   the programs, with a place for each fault
hangs.py, networks.py, ends.py, slow.py, healthy.py   the causes: data
catalogue.py  all of them
play.py       one of them on its bed: `python -m tests.diagnosis.play NAME`
recorder.py   a tflaunch that notes what its watchdog is told
score.py      from what was said to the score
__main__.py   the command

The causes were written without a look at the rules that are to find them; keep it so.
"""
