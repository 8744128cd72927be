"""How many requests of a model may wait, and for how long: the queue policies of dynamic batching."""

from __future__ import annotations

from typing import NamedTuple

from broker.proto import Message, QueuePolicyMessage
from protocol.messages import Request


class QueuePolicy(NamedTuple):
    max_size: int = 0  # 0: any number
    default_timeout_us: int = 0  # 0: for ever
    allow_override: bool = False
    delays: bool = False  # who has waited for too long is served after the others, instead of rejected

    def timeout_ns(self, request: Request) -> int:
        """0: for ever. A request may ask for less than the default, if that is allowed; without one it asks in vain."""
        timeout_us = self.default_timeout_us
        if self.allow_override and 0 < request.timeout_us < timeout_us:
            timeout_us = request.timeout_us
        return timeout_us * 1000


ANYTHING = QueuePolicy()


def queue_policy(message: Message) -> QueuePolicy:
    """Of a ModelQueuePolicy."""
    return QueuePolicy(
        message.max_queue_size,
        message.default_timeout_microseconds,
        message.allow_timeout_override,
        message.timeout_action == QueuePolicyMessage.DELAY,
    )
