"""Who may join, and what both ends say of who may not: on real sockets, with real keys."""

import socket
from typing import Any

import pytest
import zmq
from structlog.testing import capture_logs

from broker.router import Unreachable
from tensorbus.curve import Trust
from tests.tensorbus.link_ends import Broker, Keys, Service, on_the_loop, pair, raw_socket, until


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    return Keys(tmp_path_factory.mktemp("keys"))


async def attempt(broker_keys: Trust | None, service_keys: Trust | None) -> tuple[list[Any], list[Any]]:
    """What each side says of a service that dials for so long that it is refused several times."""
    broker = Broker(broker_keys)
    with capture_logs() as logs:
        service = Service(broker.listener.address, service_keys)
        await until(lambda: service.dialer._attempts >= 5)
        await until(lambda: any(line["event"] == "a service was refused" for line in logs))
    assert not broker.heard and not service.events
    with pytest.raises(Unreachable):
        service.dialer.send(b"nothing goes through")
    service.dialer.close()
    broker.listener.close()
    refused = [line for line in logs if line["event"] == "a service was refused"]
    assert all(line["peer"].startswith("127.0.0.1") for line in refused)
    return (
        [line["cause"] for line in refused],
        [line["cause"] for line in logs if line["event"] == "cannot connect to the broker"],
    )


@on_the_loop
async def test_a_key_that_is_not_authorized_is_refused_and_said_once(keys: Keys) -> None:
    said = await attempt(keys.broker(), keys.service("foreign/service.key"))
    assert said == (["its key is not authorized"], ["the broker does not know our key"])


@on_the_loop
async def test_a_service_without_a_key_is_refused_and_said_once(keys: Keys) -> None:
    refused, (cause,) = await attempt(keys.broker(), None)
    assert refused == ["one of us has a key, the other one has none"]
    assert cause == "it hangs up, as a broker does that asks for a key"


@on_the_loop
async def test_a_service_with_a_key_does_not_join_a_broker_without(keys: Keys) -> None:
    refused, (cause,) = await attempt(None, keys.service())
    assert refused == ["one of us has a key, the other one has none"]
    assert cause == "it hangs up, as a broker does that has another key, or none"


@on_the_loop
async def test_a_service_that_expects_another_broker_does_not_join_this_one(keys: Keys) -> None:
    said = await attempt(keys.broker(), keys.service(broker="foreign/broker.pub"))
    assert said == (["it does not know our key"], ["it hangs up, as a broker does that has another key, or none"])


@on_the_loop
async def test_a_key_may_be_authorized_while_the_broker_runs(keys: Keys) -> None:
    authorized = keys.directory / "authorized"
    authorized.mkdir(exist_ok=True)
    (authorized / "first.pub").write_text((keys.directory / "service.pub").read_text())
    broker = Broker(keys.broker("authorized"))
    service = Service(broker.listener.address, keys.service("foreign/service.key"))
    await until(lambda: service.dialer._said)
    (authorized / "second.pub").write_text((keys.directory / "foreign/service.pub").read_text())
    await service.connected()
    service.dialer.close()
    broker.listener.close()


@on_the_loop
async def test_who_is_no_service_is_not_heard(keys: Keys) -> None:
    async with pair() as (broker, service):
        with raw_socket(zmq.DEALER) as end:
            end.connect(broker.listener.address)
            end.send_multipart([b"header", b"frame"])
            with raw_socket(zmq.DEALER) as other:
                other.routing_id = b"\xff\xff\xff\xff\xff\xff\xff\xff"
                other.connect(broker.listener.address)
                other.send(b"header")
                port = int(broker.listener.address.rpartition(":")[2])
                with socket.create_connection(("127.0.0.1", port)) as stranger:
                    stranger.sendall(b"GET / HTTP/1.1\r\n\r\n" * 100)
                    service.dialer.send(b"I am")
                    await until(lambda: broker.heard)
        assert [service for service, *_ in broker.heard] == ["0123abcd"]
