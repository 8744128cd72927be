"""Where a service listens or dials: ``tcp://HOST:PORT``, with an IPv6 address in brackets."""

from __future__ import annotations

import ipaddress
import re
from typing import NamedTuple

_TCP = re.compile(r"tcp://(?:\[(?P<v6>[0-9a-fA-F:.]+(?:%\w+)?)\]|(?P<host>[^\s:/\[\]]+)):(?P<port>[0-9]{1,5})")


class TcpAddress(NamedTuple):
    host: str  # a name or an IP address, without brackets; "*" is every interface
    port: int

    def __str__(self) -> str:
        return f"tcp://[{self.host}]:{self.port}" if ":" in self.host else f"tcp://{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """Nobody outside this host can reach it."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"


def tcp_address(text: str) -> TcpAddress:
    """Raises ValueError with the reason."""
    found = _TCP.fullmatch(text)
    if found is None or int(found["port"]) > 65535:
        raise ValueError(f"'{text}' is not of the form tcp://HOST:PORT")
    return TcpAddress(found["v6"] or found["host"], int(found["port"]))
