"""Who a service is: its id in the names of its segments, and the nonce by which others prove that they share them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from protocol.messages import Handle
from shm.errors import BadHandle
from shm.store import Reader
from tensorbus.identity import Identity, handle_of


@pytest.fixture
def identity(tmp_path: Path) -> Identity:
    return Identity(str(tmp_path), 1 << 12)


def test_who_shares_its_memory_finds_the_nonce(identity: Identity, tmp_path: Path) -> None:
    assert bytes(Reader(str(tmp_path)).view(*identity.probe)) == identity.nonce


def test_a_new_id_leaves_nothing_under_the_old_one(identity: Identity, tmp_path: Path) -> None:
    before, probe = identity.service, identity.probe
    assert identity.renew() == identity.service != before
    assert all(identity.service in name for name in os.listdir(tmp_path))
    reader = Reader(str(tmp_path))
    assert bytes(reader.view(*identity.probe)) == identity.nonce
    with pytest.raises(BadHandle):
        reader.view(*probe)


def test_the_id_stays_while_something_lies_under_it(identity: Identity, tmp_path: Path) -> None:
    before, block = identity.service, identity.show(b"for somebody")
    assert block is not None
    assert (identity.renew(), identity.service) == ("", before)
    reader = Reader(str(tmp_path))
    assert bytes(reader.view(*handle_of(block))) == b"for somebody"
    assert bytes(reader.view(*identity.probe)) == identity.nonce
    identity.store.free(block)
    assert identity.renew() == identity.service != before


def test_without_shared_memory_it_has_no_probe(tmp_path: Path) -> None:
    assert Identity(str(tmp_path / "nowhere"), 1 << 12).probe == Handle("", 0, 0)
