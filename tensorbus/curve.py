"""Who may join a scaled stack: CURVE keys (https://rfc.zeromq.org/spec/26/), in the certificate files of ZeroMQ.

Each side proves its own key and knows the other's: a service knows the broker's public key, the broker a set of public
keys that may join. Everything between them is encrypted then. The secret of a file never reaches a log.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass

import structlog
import zmq
from zmq.auth.certs import load_certificate
from zmq.utils import z85

log = structlog.get_logger()

_ZAP_ADDRESS = "inproc://zeromq.zap.01"  # https://rfc.zeromq.org/spec/27/
_ZAP_VERSION = b"1.0"
_DOMAIN = b"tensorbus"
_KEY_NBYTES = 32
_PUBLIC, _SECRET = ".pub", ".key"  # names of key files


class BadKey(Exception):
    """A key file cannot be used; the text says which and why."""


@dataclass(frozen=True)
class Trust:
    """One side's keys. ``broker`` is of services, ``authorized`` of the broker: a file or a directory of files of
    public keys. It is read at each handshake: a key may be added or taken away while the broker runs."""

    secret: bytes  # Z85, as all keys here
    broker: bytes = b""
    authorized: str = ""

    def __repr__(self) -> str:
        return f"Trust(public={self.public.decode()})"

    @property
    def public(self) -> bytes:
        return zmq.curve_public(self.secret)


def broker_trust(key_file: str, authorized: str) -> Trust:
    """Raises BadKey."""
    if not authorized_keys(authorized):
        raise BadKey(f"there is no public key in {authorized}")
    return Trust(_secret_key(key_file), authorized=authorized)


def service_trust(key_file: str, broker_key_file: str) -> Trust:
    """Raises BadKey."""
    return Trust(_secret_key(key_file), broker=_load(broker_key_file)[0])


def authorized_keys(path: str) -> frozenset[bytes]:
    """The public keys of a file, or of the ``.pub`` files of a directory. Raises BadKey."""
    try:
        names = os.listdir(path) if os.path.isdir(path) else None
    except OSError as error:
        raise BadKey(f"cannot read {path}: {error.strerror}") from None
    if names is None:
        return frozenset([_load(path)[0]])
    return frozenset(_load(os.path.join(path, name))[0] for name in names if name.endswith(_PUBLIC))


def _secret_key(path: str) -> bytes:
    secret = _load(path)[1]
    if secret is None:
        raise BadKey(f"there is no secret key in {path}")
    return secret


def _load(path: str) -> tuple[bytes, bytes | None]:
    """The public key and, if it is there, the secret one."""
    try:
        public, secret = load_certificate(path)
    except OSError as error:
        raise BadKey(f"cannot read {path}: {error.strerror or 'no such file'}") from None
    except ValueError:
        raise BadKey(f"there is no public key in {path}") from None
    for key in filter(None, (public, secret)):
        if not _is_key(key):
            raise BadKey(f"a key in {path} is not 40 characters of Z85")
    return public, secret


def _is_key(text: bytes) -> bool:
    try:
        return len(z85.decode(text)) == _KEY_NBYTES
    except (ValueError, KeyError, OverflowError):
        return False


# --- on sockets ---------------------------------------------------------------------------------------------------


def protect_listener(socket: zmq.Socket[bytes], trust: Trust) -> None:
    """Before it binds. It takes nobody in unless a Doorkeeper of its context says so."""
    socket.setsockopt(zmq.CURVE_SERVER, 1)
    socket.setsockopt(zmq.CURVE_SECRETKEY, trust.secret)
    socket.setsockopt(zmq.ZAP_DOMAIN, _DOMAIN)
    socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)


def protect_dialer(socket: zmq.Socket[bytes], trust: Trust) -> None:
    """Before it connects."""
    socket.setsockopt(zmq.CURVE_SECRETKEY, trust.secret)
    socket.setsockopt(zmq.CURVE_PUBLICKEY, trust.public)
    socket.setsockopt(zmq.CURVE_SERVERKEY, trust.broker)


class Doorkeeper:
    """Answers libzmq which public keys may join (ZAP). ``answer`` is called when ``socket`` can be read;
    ``refused`` is told the peer's IP address and key of each that may not."""

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], trust: Trust, refused: Callable[[str, str], None]
    ) -> None:
        self._trust = trust
        self._refused = refused
        self.socket = context.socket(zmq.REP)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.bind(_ZAP_ADDRESS)

    def answer(self) -> None:
        """One question. Raises zmq.Again if there is none."""
        _, number, _, address, _, mechanism, *credentials = self.socket.recv_multipart(zmq.NOBLOCK)
        key = z85.encode(credentials[0]) if mechanism == b"CURVE" and credentials else b""
        status, text = (b"200", b"") if key in self._authorized() else (b"400", b"not authorized")
        if status != b"200":
            self._refused(address.decode(errors="replace"), key.decode())
        self.socket.send_multipart([_ZAP_VERSION, number, status, text, key, b""], zmq.NOBLOCK)

    def _authorized(self) -> frozenset[bytes]:
        try:
            return authorized_keys(self._trust.authorized)
        except BadKey as error:
            log.error("nobody can join: the authorized keys cannot be read", cause=str(error))
            return frozenset()


# --- making keys --------------------------------------------------------------------------------------------------

_OWNERS = ("broker", "service")
_PUBLIC_TEXT = "#   ZeroMQ CURVE public certificate of a tensorbus {owner}\n"
_SECRET_TEXT = "#   ZeroMQ CURVE SECRET certificate of a tensorbus {owner}: give it to nobody else\n"


def make_keys(directory: str) -> None:
    """Writes a pair for the broker and one for services: ``broker.key``, ``broker.pub``, ``service.key``,
    ``service.pub``; the first of each pair is the secret. Raises OSError; FileExistsError if there is one of them."""
    os.makedirs(directory, mode=0o700, exist_ok=True)
    paths = [os.path.join(directory, owner + suffix) for owner in _OWNERS for suffix in (_SECRET, _PUBLIC)]
    for path in filter(os.path.lexists, paths):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
    for owner in _OWNERS:
        public, secret = (key.decode() for key in zmq.curve_keypair())
        values = f'\nmetadata\ncurve\n    public-key = "{public}"\n'
        _write(os.path.join(directory, owner + _PUBLIC), 0o644, _PUBLIC_TEXT.format(owner=owner) + values)
        secret_values = f'{values}    secret-key = "{secret}"\n'
        _write(os.path.join(directory, owner + _SECRET), 0o600, _SECRET_TEXT.format(owner=owner) + secret_values)


def _write(path: str, mode: int, text: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    with open(fd, "w") as file:
        file.write(text)
        os.fchmod(fd, mode)  # whatever the umask says
