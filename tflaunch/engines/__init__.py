"""What gives slots and takes them back; below it, a slot is a host.

engine            what each engine does, and the values that go to it and come from it
registry          the engine of a word, loaded when it is used
taken_slots       slots for one command: given, given back
holder_text       the texts that an engine sends to a slot: the slot holder with its settings, the relay, the feed
door              wires to slot holders by TLS, and what else they answer to whoever has the token
listener          where slots tell the launcher something
client_command    an engine's own client: asked for an answer
spark_slots       Spark: tasks of a barrier stage
spark_driver      the Spark application that they are of
spark_board       the driver's listener, to which they say how they are
spark_rows        the rows that a run reads, and how far each slot has read them
kubernetes_slots  Kubernetes: pods of Indexed Jobs
kubernetes_jobs   these Jobs, from settings or a user's template
kubernetes_words  why pods do not come, and why they end
kubernetes_rights what a user may do there, and whether pods are placed all together
kubectl           the API server, by the user's own kubectl
slurm_slots       Slurm: tasks of one step of a job
slurm_jobs        that job, from settings
slurm_in_job      the job that tflaunch is started in
slurm_place       the directory of a set of slots, which the nodes see, too
slurm_look        what the controller says of a job: whether its slots are over, and why
slurm_words       why it waits, and why it ends
slurm_commands    Slurm, by its own commands
yarn_slots        YARN: containers of applications
yarn_asked        these applications: submitted, and their slots waited for
yarn_applications what they are, from settings: of Hadoop's distributed shell, one for each size
yarn_cluster      the cluster that a user's `yarn` knows
yarn_look         what YARN says of slots: whether they are over, and why
yarn_hosts        slots as hosts, from what their holders tell
yarn_words        why containers do not come, and why they end
yarn_manager      the ResourceManager: its nodes and applications
yarn_board        where slot holders tell that they are there
yarn_commands     YARN, by its own command
"""
