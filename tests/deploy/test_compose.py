"""The compose files and the image, as far as they can be judged without Docker."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import tomllib

from tests.deploy.files import DEPLOY, ROOT, compose_files, load

COMMANDS = {"gateway", "broker", "stub"}
KEYS = ("broker-keys:/keys-of/broker", "service-keys:/keys-of/service")
VARIABLE = re.compile(r"\$\{([A-Z_]+)")


def services(path: Path) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = load(path)["services"]
    return found


def ours() -> dict[str, dict[str, Any]]:
    """The services of compose.yaml in our image."""
    return {
        name: service for name, service in services(DEPLOY / "compose.yaml").items() if "TENSORBUS" in service["image"]
    }


def command_lines() -> Iterator[tuple[str, list[str]]]:
    for path in compose_files():
        for name, service in services(path).items():
            if service.get("command", [""])[0] in COMMANDS:
                yield f"{path.name}: {name}", service["command"]


@cache
def usage(command: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "tensorbus", command, "--help"], capture_output=True, text=True, cwd=ROOT
    )
    return done.stdout + done.stderr


def test_every_service_of_the_stack_is_there() -> None:
    assert ours().keys() == {"keys", "broker", "gateway", "stub"}
    assert {"prometheus", "grafana"} <= services(DEPLOY / "compose.yaml").keys()


@pytest.mark.parametrize("where, command", list(command_lines()))
def test_every_flag_is_one_of_the_command(where: str, command: list[str]) -> None:
    flags = {argument.partition("=")[0] for argument in command[1:] if argument.startswith("--")}
    known = set(re.findall(r"^\s*(--[a-z-]+)", usage(command[0]), re.MULTILINE))
    assert flags <= known, f"{where}: {command[0]} has no {sorted(flags - known)}"


@pytest.mark.parametrize("name, service", list(ours().items()))
def test_services_have_no_more_rights_than_they_need(name: str, service: dict[str, Any]) -> None:
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert "no-new-privileges:true" in service["security_opt"]
    assert service["user"] == "10001:10001"
    mounts = [mount for mount in service["volumes"] if isinstance(mount, str)]
    writable = {mount for mount in mounts if not mount.endswith(":ro")}
    assert writable == {"keys": set(KEYS), "stub": {"home:/home/tensorbus"}}.get(name, set())


def test_each_side_has_its_own_secret_key_alone() -> None:
    mounts = {name: [str(mount) for mount in service["volumes"]] for name, service in ours().items()}
    holders = {
        keys: {name for name in mounts if f"{keys}:/keys:ro" in mounts[name]}
        for keys in ("broker-keys", "service-keys")
    }
    assert holders == {"broker-keys": {"broker"}, "service-keys": {"gateway", "stub"}}


def test_only_loopback_is_published_unless_told_otherwise() -> None:
    for path in compose_files():
        for name, service in services(path).items():
            for port in service.get("ports", []):
                assert port.startswith(("127.0.0.1:", "${TENSORBUS_ADDRESS:-127.0.0.1}:")), (path.name, name, port)


def test_shared_memory_is_one_volume_that_keeps_its_mode() -> None:
    for name in ("broker", "gateway", "stub"):
        (shm,) = [mount for mount in ours()[name]["volumes"] if isinstance(mount, dict)]
        assert shm == {"type": "volume", "source": "shm", "target": "/dev/shm", "volume": {"nocopy": True}}
    assert load(DEPLOY / "compose.yaml")["volumes"]["shm"]["driver_opts"]["type"] == "tmpfs"


def test_without_shared_memory_no_service_has_the_volume() -> None:
    apart = services(DEPLOY / "compose.frames.yaml")
    assert apart.keys() == {"broker", "gateway", "stub"}
    assert not [mount for service in apart.values() for mount in service["volumes"] if "shm" in str(mount)]


def test_files_that_are_mounted_are_there() -> None:
    for path in compose_files():
        for service in services(path).values():
            for mount in service.get("volumes", []):
                source = mount.partition(":")[0] if isinstance(mount, str) else mount["source"]
                assert not source.startswith(".") or (DEPLOY / source).exists(), (path.name, mount)


def test_every_variable_is_in_the_documentation() -> None:
    documented = set(re.findall(r"\b[A-Z]+_[A-Z_]+\b", (ROOT / "docs" / "deploy-compose.md").read_text()))
    used = {name for path in compose_files() for name in VARIABLE.findall(path.read_text())}
    assert used <= documented, used - documented


def test_prometheus_looks_for_services_that_there_are() -> None:
    config = load(DEPLOY / "prometheus" / "prometheus.yml")
    looked_for = {
        name for job in config["scrape_configs"] for each in job.get("dns_sd_configs", []) for name in each["names"]
    }
    assert looked_for == {"gateway", "broker", "stub"}
    assert looked_for <= services(DEPLOY / "compose.yaml").keys()
    environment = services(DEPLOY / "compose.environment.yaml")["stub-environment"]
    assert environment["networks"]["default"]["aliases"] == ["stub"]


def test_the_balancer_hands_each_port_on_to_the_same_one_of_the_gateways() -> None:
    config = (DEPLOY / "haproxy" / "haproxy.cfg").read_text()
    sections = dict(re.findall(r"^((?:frontend|backend) \w+)\n((?:    .*\n)+)", config, re.MULTILINE))
    for name, port in (("http", "8000"), ("grpc", "8001")):
        assert f"bind :{port}" in sections[f"frontend {name}"]
        assert f"default_backend {name}" in sections[f"frontend {name}"]
        assert f"gateway:{port}" in sections[f"backend {name}"]
        assert "/health/ready" in sections[f"backend {name}"] and "port 8002" in sections[f"backend {name}"]
    balancer = services(DEPLOY / "compose.gateways.yaml")["balancer"]
    assert balancer["ports"] == services(DEPLOY / "compose.yaml")["gateway"]["ports"]


def test_the_image_has_every_package_of_the_wheel() -> None:
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    dockerfile = (DEPLOY / "Dockerfile").read_text()
    copied = {
        source for line in re.findall(r"^COPY (?!--from)(.+) \S+$", dockerfile, re.MULTILINE) for source in line.split()
    }
    sent = set(re.findall(r"^!(.+)$", (DEPLOY / "Dockerfile.dockerignore").read_text(), re.MULTILINE))
    assert set(wheel["packages"]) <= copied == sent
    assert all((ROOT / source).exists() for source in copied)
