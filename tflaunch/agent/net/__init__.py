"""Connections of this host: the launcher's channel, peers, held ports, the dial check, TensorBoard."""
