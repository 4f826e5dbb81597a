"""What gives slots and takes them back; below it, a slot is a host.

door         wires to slot holders by TLS, and what else they answer there
holder_text  the texts that an engine sends to a slot
"""
