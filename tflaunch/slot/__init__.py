"""What an engine starts in a slot: each one text that imports nothing of tflaunch, sent by the engine's own ways.

holder  the slot holder: starts commands, tells agents that the engine takes the slot back, ends all that is below it
relay   passes its stdio on to the slot holder, and ends as the command does
"""
