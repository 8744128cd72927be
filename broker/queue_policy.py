"""How many requests of a model may wait, and for how long: the default queue policy of dynamic batching."""

from __future__ import annotations

from typing import NamedTuple

from broker.model_config import ModelConfig, Scheduler
from broker.proto import QueuePolicyMessage
from protocol.messages import Request


class QueuePolicy(NamedTuple):
    max_size: int = 0  # 0: any number
    default_timeout_us: int = 0  # 0: for ever
    allow_override: bool = False

    def timeout_ns(self, request: Request) -> int:
        """0: for ever. A request may ask for less than the default, if that is allowed; without one it asks in vain."""
        timeout_us = self.default_timeout_us
        if self.allow_override and 0 < request.timeout_us < timeout_us:
            timeout_us = request.timeout_us
        return timeout_us * 1000


def queue_policy(config: ModelConfig) -> QueuePolicy:
    if config.scheduler is not Scheduler.DYNAMIC:
        return QueuePolicy()
    policy = config.message.dynamic_batching.default_queue_policy
    rejects = policy.timeout_action == QueuePolicyMessage.REJECT
    return QueuePolicy(
        policy.max_queue_size, policy.default_timeout_microseconds if rejects else 0, policy.allow_timeout_override
    )
