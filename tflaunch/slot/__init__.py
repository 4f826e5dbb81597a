"""What an engine starts in a slot: each one text that imports nothing of tflaunch, sent by the engine's own ways.

holder      the slot holder: starts commands, tells agents that the slot is taken back, ends all that is below it
relay       passes its stdio on to the slot holder, and ends as the command does
spark_task  what a task of Spark does: starts a slot holder and waits for its end
spark_feed  the rows of a task of Spark, on their way to the tasks of the run
slurm_task  what a task of Slurm knows of its slot
yarn_task   what a container of YARN does: tells the launcher where its slot holder listens, copies tasks' lines
"""
