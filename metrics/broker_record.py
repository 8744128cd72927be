"""What a broker of a scaled stack counts of the services that have joined: plain ints, as in recorder.py."""

from __future__ import annotations


class BrokerRecord:
    __slots__ = ("fetches", "gateways", "ignored_reads", "instances", "stub_hosts", "waiting")

    def __init__(self) -> None:
        self.gateways = 0  # that are there
        self.stub_hosts = 0
        self.instances = 0  # stub processes on them
        self.waiting = 0  # requests of gateways that have no final response yet
        self.fetches = 0  # tensors that were fetched for readers that do not share memory with their owner
        self.ignored_reads = 0  # of outputs that the gateway had not got, or had read before
