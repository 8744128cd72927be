"""SIGINT and SIGTERM are the server's: they do nothing in a stub, and all they should in what its model starts.

The server alone decides when a stub ends, also when a terminal sends Ctrl-C to all its processes. Programs that the
model runs get the default back by themselves, since this is a handler and not SIG_IGN; processes that it forks get it
here, and no signal is lost before they have it (a pool of processes is ended by SIGTERM, maybe as soon as it is made).
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # signal.getsignal is much slower: it makes an enum of what it finds
import os
import signal
import threading
from types import FrameType
from typing import Optional

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
# What a model may use to break off its own work.
_ALARMS = [*map(int, (signal.SIGALRM, signal.SIGVTALRM, signal.SIGPROF, signal.SIGUSR1, signal.SIGUSR2))]

_forking = threading.local()  # ``mask``: the signal mask of the thread that is in fork


def ignore() -> None:
    """Once, in the main thread of a stub."""
    for number in _SIGNALS:
        signal.signal(number, _do_nothing)
    os.register_at_fork(before=_hold, after_in_parent=_let_go, after_in_child=_restore)


def are_handled() -> bool:
    """Whether the model has a handler of its own, which may raise wherever the main thread is. Quick."""
    return any(callable(_signal.getsignal(number)) for number in _ALARMS)


def _do_nothing(number: int, frame: Optional[FrameType]) -> None:
    pass


def _hold() -> None:
    _forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)


def _let_go() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _forking.mask)


def _restore() -> None:
    if signal.getsignal(signal.SIGINT) is _do_nothing:  # else the model has its own
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGTERM) is _do_nothing:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _let_go()
