"""What is raised where the stub has said its last message. Not in channel.py: unit tests of models need no ZeroMQ."""

from __future__ import annotations


class Closed(Exception):
    """A line of a thread or an exit handler of the model that comes after the stub's last message."""
