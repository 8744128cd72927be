import pytest

from tensorbus.tcp_address import TcpAddress, tcp_address


@pytest.mark.parametrize(
    "text, host, port, is_loopback",
    [
        ("tcp://127.0.0.1:8003", "127.0.0.1", 8003, True),
        ("tcp://127.9.9.9:0", "127.9.9.9", 0, True),
        ("tcp://localhost:1", "localhost", 1, True),
        ("tcp://[::1]:8003", "::1", 8003, True),
        ("tcp://0.0.0.0:8003", "0.0.0.0", 8003, False),
        ("tcp://[::]:8003", "::", 8003, False),
        ("tcp://*:8003", "*", 8003, False),
        ("tcp://broker.stack.svc.cluster.local:65535", "broker.stack.svc.cluster.local", 65535, False),
        ("tcp://10.0.0.1:8003", "10.0.0.1", 8003, False),
        ("tcp://localhost.example:8003", "localhost.example", 8003, False),
    ],
)
def test_an_address_is_a_host_and_a_port(text: str, host: str, port: int, is_loopback: bool) -> None:
    address = tcp_address(text)
    assert (address, str(address), address.is_loopback) == (TcpAddress(host, port), text, is_loopback)


@pytest.mark.parametrize(
    "text",
    ["", "broker:8003", "tcp://broker", "tcp://broker:", "tcp://:8003", "tcp://broker:65536", "tcp://::1:8003",
     "ipc:///run/bus", "tcp://a b:1", "tcp://broker:8003/", "tcp://broker:8003\n", "tcp://broker:80x", "http://h:1"],
)  # fmt: skip
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not of the form tcp://HOST:PORT"):
        tcp_address(text)
