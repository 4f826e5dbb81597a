"""What gives slots and takes them back; below it, a slot is a host.

engine    what each engine does, and the values that go to it and come from it
registry  the engine of a word, loaded when it is used
taking    slots for one command: given, given back
"""
