"""What lies on this host's disk.

checked      what of the store need not be read again before it is copied
code_upload  shipped code on its way into the store
code_store   the store of shipped code
outputs      the files that tasks have written, found and read for `fetch`
unaged       keeps systemd-tmpfiles from directories that are in use
"""
