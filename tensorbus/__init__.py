"""The command, and the Python API: ``tensorbus.Server`` runs a server in the user's own process.

Imports all, nobody imports it. The names of the API are imported at first use: the command and a model in the
foreground need none of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tensorbus.server import InferenceError, Server, ServerError, Tensor

__all__ = ["InferenceError", "Server", "ServerError", "Tensor"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'tensorbus' has no attribute '{name}'")
    from tensorbus import server

    return getattr(server, name)
