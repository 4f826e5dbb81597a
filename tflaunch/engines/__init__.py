"""What gives slots and takes them back; below it, a slot is a host.

engine       what each engine does, and the values that go to it and come from it
registry     the engine of a word, loaded when it is used
taken_slots  slots for one command: given, given back
holder_text  the texts that an engine sends to a slot: the slot holder with its settings, and the relay
door         wires to slot holders by TLS, and what else they answer to whoever has the token
"""
