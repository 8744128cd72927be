"""What a process that says Hello is told to load: which file, with which configuration, to complete or to serve it."""

from __future__ import annotations

from broker import auto_complete
from broker.backends import with_settings
from broker.events import Action, Kill, Say, Send
from broker.instance import InstanceEvent
from broker.model import ModelVersion
from broker.model_config import ModelConfig
from broker.roster import Roster
from broker.settings import BrokerSettings
from broker.signature import initialize_args
from broker.time_limits import LOAD as LOAD_LIMIT
from broker.time_limits import TimeLimits
from protocol.messages import LOAD, VERSION, Handle, Hello, Load


class LoadMessages:
    """Each begins the time that its process has for loading."""

    def __init__(self, settings: BrokerSettings, roster: Roster, limits: TimeLimits, probe: Handle) -> None:
        self._settings = settings
        self._roster = roster
        self._limits = limits
        self._probe = probe

    def answer(self, key: str, message: Hello, now: int) -> list[Action]:
        if message.version != VERSION:
            return [Kill(key), Say("error", "a stub speaks another protocol version", {"version": message.version})]
        configuring = self._roster.configuring(key)
        if configuring is not None:
            config = with_settings(configuring.config, self._settings.backends.get(configuring.config.backend))
            self._limits.begin(key, configuring.name, configuring.config, LOAD_LIMIT, now)
            return [self._send_load(key, "auto_complete", configuring, _auto_complete_args(configuring, config))]
        found = self._roster.serving(key)
        if found is None:
            return []
        version, instance = found
        instance.on(InstanceEvent.HELLO)
        self._limits.begin(key, instance.spec.name, version.config, LOAD_LIMIT, now)
        update = version.update if instance in version.joining else None
        config = update.config if update is not None and update.config is not None else version.config
        config = with_settings(config, self._settings.backends.get(version.config.backend))
        args = initialize_args(config, instance.spec, version.version, version.source.directory)
        return [self._send_load(key, "serve", version, args)]

    def _send_load(self, key: str, mode: str, version: ModelVersion, args: dict[str, str]) -> Send:
        source, backend = version.source, self._settings.backends.get(version.config.backend)
        file = backend.model_file if backend is not None else source.model_file
        return Send(
            key,
            Load(
                LOAD,
                mode,
                file,
                source.version_directory,
                args,
                self._probe,
                self._settings.shm_directory,
                self._settings.max_unread_bytes,
                small_nbytes=self._settings.small_nbytes,
            ),
        )


def _auto_complete_args(version: ModelVersion, config: ModelConfig) -> dict[str, str]:
    return {
        "model_config": auto_complete.request(config),
        "model_repository": version.source.directory,
        "model_version": str(version.version),
        "model_name": config.name,
    }
