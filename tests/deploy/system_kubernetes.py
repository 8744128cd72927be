"""The chart on a cluster, as its users run it: ``make system-kubernetes``. Needs helm, kubectl and a cluster of one
node, this machine, which has the image TENSORBUS_IMAGE (tensorbus:0.1.0) and from where services can be reached.
"""

from __future__ import annotations

import json
import re
import subprocess
from base64 import b64decode, b64encode
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as grpc
import tritonclient.http as http

from tensorbus.curve import make_keys
from tests.deploy.release import NAME, Release, why_not
from tests.deploy.stack import Load, ask, eventually, make_repository

reason = why_not()
SHARED = Path("/dev/shm/tensorbus-system")
pytestmark = [pytest.mark.timeout(900), pytest.mark.skipif(bool(reason), reason=reason)]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models")
    for parent in list(path.parents)[:2]:
        parent.chmod(0o755)
    return make_repository(path)


def running(namespace: str, models: Path, work: Path, **values: object) -> Iterator[Release]:
    subprocess.run(["kubectl", "create", "namespace", namespace], check=True, capture_output=True)
    release = Release(namespace, models, work, **values)
    try:
        release.apply("install")
        yield release
    except BaseException:
        print(release.logs()[-20000:])
        raise
    finally:
        release.remove()
        subprocess.run(["kubectl", "delete", "namespace", namespace], check=True, capture_output=True)


def answers_large_tensors(release: Release) -> None:
    random = np.random.default_rng(1)
    for module, url in ((http, release.http), (grpc, release.grpc)):
        with module.InferenceServerClient(url) as client:
            for _ in range(20):
                assert ask(module, client, random.standard_normal(1_000_000).astype(np.float32))[0] == ""


class TestAcrossNodes:
    @pytest.fixture(scope="class")
    def release(self, models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Release]:
        yield from running("apart", models, tmp_path_factory.mktemp("values"))

    def test_large_tensors_go_in_frames(self, release: Release) -> None:
        answers_large_tensors(release)
        assert release.metric("gateway", 'tensorbus_gateway_requests_total{path="frames"}') == 40
        assert release.metric("gateway", 'tensorbus_gateway_requests_total{path="shm"}') == 0

    def test_keys_are_made_once(self, release: Release) -> None:
        first = release.kubectl("get", "secret", f"{NAME}-keys", "--output=jsonpath={.metadata.uid} {.data}")
        assert all(name in first for name in ("broker.key", "broker.pub", "service.key", "service.pub"))
        release.apply("upgrade")
        assert release.kubectl("get", "secret", f"{NAME}-keys", "--output=jsonpath={.metadata.uid} {.data}") == first
        assert release.kubectl("get", "jobs", "--output=name") == ""

    def test_stub_hosts_come_and_go_under_load(self, release: Release) -> None:
        release.scale(1)
        load = Load(release)
        try:
            load.await_more(100)
            release.scale(3)
            eventually(lambda: len(load.hosts & hosts(release)) == 3, 120, "answers of three hosts")
            load.await_more(300)
            release.scale(1)
            load.await_more(300)
        finally:
            load.stop()
        assert load.failures == []

    def test_stub_hosts_are_replaced_under_load(self, release: Release) -> None:
        before = hosts(release)
        load = Load(release)
        try:
            release.restart("stub-all")
            eventually(lambda: not before & hosts(release), 120, "the old hosts are gone")
            load.await_more(200)
        finally:
            load.stop()
        assert load.failures == []

    def test_services_get_new_keys(self, release: Release, tmp_path: Path) -> None:
        """As docs/deploy-kubernetes.md tells it."""
        data = json.loads(release.kubectl("get", "secret", f"{NAME}-keys", "--output=json"))["data"]
        (tmp_path / "also.pub").write_bytes(b64decode(data["service.pub"]))
        release.kubectl(
            "create", "secret", "generic", f"{NAME}-also-authorized", f"--from-file={tmp_path / 'also.pub'}"
        )
        make_keys(str(tmp_path / "new"))
        new = {
            name: b64encode((tmp_path / "new" / name).read_bytes()).decode() for name in ("service.key", "service.pub")
        }
        release.kubectl("patch", "secret", f"{NAME}-keys", "--patch", json.dumps({"data": new}))
        keys = [
            re.findall(r'public-key = "(.+)"', path.read_text())[0]
            for path in (tmp_path / "also.pub", tmp_path / "new" / "service.pub")
        ]
        (broker,) = release.pods("broker")
        show = ("exec", broker["metadata"]["name"], "--", "grep", "-Rh", "public-key", "/keys/authorized")
        eventually(lambda: all(key in release.kubectl(*show) for key in keys), 180, "the broker's pod has both keys")
        release.restart("stub-all")
        release.restart("gateway")
        release.kubectl("delete", "secret", f"{NAME}-also-authorized")
        answers_large_tensors(release)
        assert release.pods("broker")[0]["metadata"]["name"] == broker["metadata"]["name"]

    def test_a_broker_is_replaced_and_nothing_else_is(self, release: Release) -> None:
        release.scale(2)
        load = Load(release)
        try:
            load.await_more(100)
            (broker,) = release.pods("broker")
            release.kubectl("delete", "pod", broker["metadata"]["name"])
            release.kubectl("rollout", "status", "deployment", f"{NAME}-broker", "--timeout=180s")
            eventually(lambda: release.metric("broker", "tensorbus_broker_gateways") == 2, 60, "gateways joined again")
            load.places.clear()
            eventually(lambda: len(load.hosts) == 2, 60, "answers of both hosts")
            load.failures.clear()
            load.await_more(200)
        finally:
            load.stop()
        assert load.failures == []
        others = [status for pod in release.pods() for status in pod["status"]["containerStatuses"]]
        assert [each["restartCount"] for each in others] == [0] * 5


class TestOnASharedHost:
    @pytest.fixture(scope="class")
    def release(self, models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Release]:
        path = tmp_path_factory.mktemp("values")
        yield from running("shared", models, path, placement={"sharedHost": True, "hostPath": str(SHARED)})
        SHARED.rmdir()  # empty: nobody has left anything

    def test_large_tensors_go_by_shared_memory(self, release: Release) -> None:
        answers_large_tensors(release)
        assert release.metric("gateway", 'tensorbus_gateway_requests_total{path="shm"}') == 40
        assert release.metric("gateway", 'tensorbus_gateway_requests_total{path="frames"}') == 0

    def test_stub_hosts_come_and_go_under_load(self, release: Release) -> None:
        load = Load(release)
        try:
            release.scale(3)
            eventually(lambda: len(load.hosts & hosts(release)) == 3, 120, "answers of three hosts")
            release.scale(1)
            load.await_more(200)
        finally:
            load.stop()
        assert load.failures == []


def hosts(release: Release) -> set[str]:
    return {pod["metadata"]["name"] for pod in release.pods("stub")}
