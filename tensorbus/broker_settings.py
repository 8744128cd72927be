"""What a broker is told, from what a command line has said."""

from __future__ import annotations

import time
from collections.abc import Mapping

from broker.backends import Backend
from broker.settings import BrokerSettings, DelayScheduler, ResourceLimit
from tensorbus.logs import current_settings
from tensorbus.settings import ServeSettings


def broker_settings(
    settings: ServeSettings,
    bus: str,
    shm_directory: str,
    backends: Mapping[str, Backend],
    response_cache: bool,
    gpus: tuple[int, ...] = (),
    hosted: bool = False,
) -> BrokerSettings:
    return BrokerSettings(
        bus=bus,
        shm_directory=shm_directory,
        auto_complete=not settings.disable_auto_complete_config,
        strict_readiness=settings.strict_readiness,
        explicit_control=settings.model_control_mode == "explicit",
        load_concurrency=settings.model_load_thread_count,
        load_retries=settings.model_load_retry_count,
        namespaces=settings.namespaces,
        response_cache=response_cache,
        max_queued_requests=settings.max_queued_requests,
        max_unread_bytes=settings.max_unread_bytes,
        small_nbytes=settings.small_nbytes,
        rate_limits=_rate_limits(settings),
        backends=backends,
        gpus=gpus,
        hosted=hosted,
        first_number=time.time_ns() // 1000 if hosted else 0,  # no broker runs a million batches a second
        delay_scheduler=DelayScheduler(settings.delay_scheduler, settings.backlog_delay_scheduler),
        explains=lambda: current_settings().log_verbose_level >= 1,
    )


def _rate_limits(settings: ServeSettings) -> tuple[ResourceLimit, ...] | None:
    if settings.rate_limit == "off":
        return None
    return tuple(ResourceLimit(*one) for one in settings.rate_limit_resource)
