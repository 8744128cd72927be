"""What gateways that have joined ask about models: whether they are ready, their statistics, the index, (un)loading.

Each question is answered once, by a message of its number, whenever the broker knows.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from broker.events import LoadModel, Override, UnloadModel
from broker.remote.catalogue import Catalogues, SendTo
from broker.server import BrokerServer
from broker.statistics import statistics
from protocol.errors import InvalidArgument, ServingError
from protocol.services import SAID, Ask, Said

_Say = Callable[..., None]  # with an error, or with None and what was asked for
_SAID = partial(Said, SAID, 0)
_NOTHING = _SAID()


class GatewayQuestions:
    def __init__(self, server: BrokerServer, catalogues: Catalogues, send: SendTo) -> None:
        self._server = server
        self._catalogues = catalogues
        self._send_to = send
        self._asks: dict[str, Callable[[Ask, _Say], None]] = {
            "ready": self._ask_ready,
            "statistics": self._ask_statistics,
            "index": self._ask_index,
            "load": self._ask_load,
            "unload": self._ask_unload,
        }

    def ask(self, service: str, message: Ask) -> None:
        """Never raises: what cannot be told is told so."""

        def say(error: ServingError | None = None, said: Said = _NOTHING) -> None:
            told = None if error is None else (int(error.kind), str(error))
            self._catalogues.push()  # whoever has loaded a model finds it
            self._send_to(service, said._replace(number=message.number, error=told), ())

        try:
            ask = self._asks.get(message.operation)
            if ask is None:
                raise InvalidArgument(f"there is no operation '{message.operation}'")
            ask(message, say)
        except ServingError as error:
            say(error)

    def _ask_ready(self, message: Ask, say: _Say) -> None:
        """Raises NotFound."""
        if message.model:
            self._server.model_ready(message.model, message.version, lambda ready: say(None, _SAID(ready=ready)))
        else:
            self._server.ready(lambda ready: say(None, _SAID(ready=ready)))

    def _ask_statistics(self, message: Ask, say: _Say) -> None:
        """Raises InvalidArgument."""
        found = self._server.core.registry.select(message.model, message.version)
        say(None, _SAID(statistics=[statistics(one) for one in found]))

    def _ask_index(self, message: Ask, say: _Say) -> None:
        self._server.index(message.ready, lambda rows: say(None, _SAID(rows=rows)))

    def _ask_load(self, message: Ask, say: _Say) -> None:
        override = None if message.config is None and not message.files else Override(message.config, message.files)
        self._server.post(LoadModel(message.model, override, say))

    def _ask_unload(self, message: Ask, say: _Say) -> None:
        self._server.post(UnloadModel(message.model, message.unload_dependents, say))
