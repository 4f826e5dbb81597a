"""What lies on this host's disk.

rundir       the run directory; failures as sentences for the user
reserve      room for the agent's own files on a disk that fills up
journal      the events of a run, numbered
code_upload  shipped code on its way into the store
code_store   the store of shipped code
outputs      the files that tasks have written, found and read for `fetch`
unaged       keeps systemd-tmpfiles from directories that are in use
garbage      what runs leave, and its removal
"""
