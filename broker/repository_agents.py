"""``model_repository_agents``: what a configuration wants done with the model's directory before it is loaded.

The only agent is ``checksum``, which compares files with the digests that its parameters name:

    agents [{ name: "checksum" parameters { key: "MD5:1/model.py" value: "0cc1..." } }]
"""

from __future__ import annotations

import hashlib
import os

from broker.config_files import escapes
from broker.proto import Message
from protocol.errors import InvalidArgument, Unsupported

CHECKSUM = "checksum"
_ALGORITHMS = ("md5", "sha1", "sha256", "sha512")
_SEARCHED = "/opt/tritonserver/repoagents"


def run_agents(message: Message, model_dir: str) -> None:
    """In the order of the configuration. Raises InvalidArgument or Unsupported."""
    for agent in message.model_repository_agents.agents:
        if agent.name != CHECKSUM:
            raise InvalidArgument(
                f"unable to find 'libtritonrepoagent_{agent.name}.so' for repo agent '{agent.name}', searched: "
                f"{_SEARCHED}"
            )
        for key, expected in sorted(agent.parameters.items()):
            _check(key, expected, model_dir)


def _check(key: str, expected: str, model_dir: str) -> None:
    algorithm, colon, name = key.partition(":")
    if not colon:
        raise InvalidArgument(f"failed to parse key: {key}")
    if algorithm.lower() not in _ALGORITHMS:
        raise Unsupported(f"Unsupported checksum algorithm: {algorithm}")
    found = _digest(algorithm.lower(), os.path.join(model_dir, name), name, model_dir)
    if found != expected:
        raise InvalidArgument(f"Mismatched {algorithm.upper()} hash for file {name}, expect: {expected}, got: {found}")


def _digest(algorithm: str, path: str, name: str, model_dir: str) -> str:
    if escapes(path, model_dir):
        raise InvalidArgument(f"checksum of '{name}', which is outside model directory")
    try:
        if not os.path.isfile(path):  # a pipe would be waited for
            raise FileNotFoundError(2, "No such file or directory")
        with open(path, "rb") as file:
            return hashlib.file_digest(file, algorithm).hexdigest()
    except OSError as error:
        raise InvalidArgument(f"failed to open text file for read {name}: {error.strerror}") from None
