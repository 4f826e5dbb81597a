"""The launcher's end of the agents: wires, boot, messages, logs on their way."""
