"""What can go wrong with shared memory. The texts may reach a client, so they hold no segment name and no path."""

from __future__ import annotations


class ShmFull(Exception):
    """No shared memory of that size can be had now; tensors travel as inline frames instead."""


class BadSegment(Exception):
    """A name that is no segment of ours, or a file that is not laid out as one."""


class BadHandle(Exception):
    """A peer's handle does not lie inside a readable segment. The peer is at fault."""
