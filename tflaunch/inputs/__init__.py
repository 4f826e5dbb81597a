"""What people write, read with the positions of every mistake.  Lowest first:

options/        every option of every verb, each once: for the command line, the files and the API
variables       what may stand in a task's environment
placeholders    `{index}` in arguments and variables of tasks
amounts         `90s`, `2h`, `40GiB`, as they are written
documents       text files that users write; words that know their line and column
hostnames       ranges of names: `gpu[01-16]`, expanded and folded
patterns        which paths `--fetch` takes
gitignore       which files .gitignore and .tflaunchignore leave out
ownership       whether another user could have written a file
yaml_text, yaml_values, yaml_document   YAML with positions, and the checks that hostfile and job file share
hostfile_entries, hostfile_model, hostfile_settings, hostfile_yaml   the YAML hostfile: its hosts or slots, its keys,
    how groups and defaults are folded in, and how it is read
batch_job       the nodes, tasks and GPUs of a Slurm or PBS job
job_model, job_file   the job file of `run`: its keys, and how it is read
config_model, toml_document, config   the configuration files: their keys, TOML with positions, how they are read
missing_files   the error for a file that an option names and that is not there
env_file        NAME=VALUE files of variables for the tasks
"""
