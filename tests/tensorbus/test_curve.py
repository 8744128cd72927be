"""Key files, without sockets; test_links_trust.py has what the keys do there."""

import os
import stat
from pathlib import Path

import pytest
from zmq.auth.certs import load_certificate

from tensorbus.__main__ import main
from tensorbus.curve import BadKey, authorized_keys, broker_trust, make_keys, service_trust

FILES = ["broker.key", "broker.pub", "service.key", "service.pub"]


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    make_keys(str(tmp_path / "keys"))
    return tmp_path / "keys"


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_secrets_are_for_their_owner_alone(tmp_path: Path, umask: int, capsys: pytest.CaptureFixture[str]) -> None:
    before = os.umask(umask)
    try:
        assert main(["keys", str(tmp_path / "a" / "keys")]) == 0
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "a" / "keys").iterdir()}
    assert modes == {"broker.key": 0o600, "broker.pub": 0o644, "service.key": 0o600, "service.pub": 0o644}
    shown = capsys.readouterr().out
    assert all(name in shown for name in FILES)
    for secret in ("broker.key", "service.key"):
        assert load_certificate(tmp_path / "a" / "keys" / secret)[1].decode() not in shown


@pytest.mark.parametrize("present", FILES)
def test_nothing_is_overwritten(tmp_path: Path, present: str, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / present).write_text("mine")
    assert main(["keys", str(tmp_path)]) == 1
    assert [path.name for path in tmp_path.iterdir()] == [present]
    assert (tmp_path / present).read_text() == "mine"
    assert f"{tmp_path / present} exists already" in capsys.readouterr().err


def test_a_directory_that_cannot_be_made_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    assert main(["keys", str(tmp_path / "file" / "keys")]) == 1
    assert capsys.readouterr().err == f"error: cannot write keys to {tmp_path}/file/keys: Not a directory\n"


@pytest.mark.parametrize("arguments", [[], ["a", "b"], ["--force"]])
def test_keys_takes_a_directory(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["keys", *arguments]) == 1
    assert "Usage: tensorbus keys DIR" in capsys.readouterr().err


def test_files_are_certificates_as_zeromq_writes_them(keys: Path) -> None:
    for owner in ("broker", "service"):
        public, secret = load_certificate(keys / f"{owner}.key")
        assert load_certificate(keys / f"{owner}.pub") == (public, None)
        assert secret is not None and len(secret) == len(public) == 40


def test_each_side_knows_its_own_secret_and_the_others_public_key(keys: Path) -> None:
    broker = broker_trust(str(keys / "broker.key"), str(keys / "service.pub"))
    service = service_trust(str(keys / "service.key"), str(keys / "broker.pub"))
    assert service.broker == broker.public
    assert authorized_keys(broker.authorized) == {service.public}
    assert broker.secret.decode() not in repr(broker) and service.secret.decode() not in repr(service)


def test_of_a_directory_the_pub_files_are_authorized(keys: Path, tmp_path: Path) -> None:
    public = {name: load_certificate(keys / name)[0] for name in ("broker.pub", "service.pub")}
    assert authorized_keys(str(keys)) == set(public.values())
    (keys / "broker.pub").unlink()
    assert authorized_keys(str(keys)) == {public["service.pub"]}


@pytest.mark.parametrize(
    "name, text, reason",
    [
        ("missing", None, "cannot read .*missing: no such file"),
        ("empty", "", "there is no public key in .*empty"),
        ("words", "metadata\ncurve\n    public-key = words\n", "a key in .*words is not 40 characters of Z85"),
        ("long", f"curve\n  public-key = '{'0' * 45}'\n", "a key in .*long is not 40 characters of Z85"),
        ("umlaut", f"curve\n  public-key = '{'ä' * 20}'\n", "a key in .*umlaut is not 40 characters of Z85"),
    ],
)
def test_a_file_without_a_key_is_named(keys: Path, name: str, text: str | None, reason: str) -> None:
    path = keys / name
    if text is not None:
        path.write_text(text)
    with pytest.raises(BadKey, match=reason):
        service_trust(str(path), str(keys / "broker.pub"))
    with pytest.raises(BadKey, match=reason):
        service_trust(str(keys / "service.key"), str(path))
    with pytest.raises(BadKey, match=reason):
        broker_trust(str(keys / "broker.key"), str(path))


def test_a_public_key_in_place_of_the_secret_is_said(keys: Path) -> None:
    with pytest.raises(BadKey, match=r"there is no secret key in .*service\.pub"):
        service_trust(str(keys / "service.pub"), str(keys / "broker.pub"))


def test_a_directory_that_authorizes_nobody_is_said(keys: Path, tmp_path: Path) -> None:
    with pytest.raises(BadKey, match="there is no public key in"):
        broker_trust(str(keys / "broker.key"), str(tmp_path))
