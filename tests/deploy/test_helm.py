"""The Helm chart and the plain manifests, as far as they can be judged without a cluster.

Without helm or kubectl, the plain manifests alone are judged, which are what the chart renders.
"""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.kubernetes.render import rendered
from tensorbus import service_settings, settings
from tensorbus.curve import make_keys
from tests.deploy.files import DEPLOY, ROOT, load
from tests.deploy.manifests import (
    CHART,
    EVERY,
    EXAMPLES,
    SERVICES,
    deployments,
    files_of,
    fits,
    kind,
    manifests,
    query_models,
    render,
    selects,
    the_container,
)

KSERVE = DEPLOY / "kubernetes" / "kserve"
RELEASES = ("1.35", "1.36", "1.37")
THEIRS = {"PodMonitor", "PrometheusRule", "ScaledObject", "ServingRuntime", "InferenceService"}  # not of Kubernetes
SHARED_HOST = next(path for path in EXAMPLES if path.stem == "shared-host")
ACROSS_NODES = next(path for path in EXAMPLES if path.stem == "across-nodes")

Documents = list[dict[str, Any]]


def named(path: Path | None) -> str:
    return path.stem if path else "defaults"


@pytest.fixture(params=["plain", *EVERY], ids=lambda each: each if isinstance(each, str) else named(each))
def documents(request: pytest.FixtureRequest) -> Documents:
    """Of the plain manifests, and of the chart with each file of values."""
    if request.param == "plain":
        return manifests()
    return render(request.getfixturevalue("helm"), request.param)


@pytest.fixture(scope="session")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("secrets")
    make_keys(str(path))
    return path


# --- the chart ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("values", EVERY, ids=named)
def test_the_chart_has_nothing_to_complain_of(helm: str, values: Path | None) -> None:
    command = [helm, "lint", "--strict", CHART, *(["--values", values] if values else [])]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    "mistake, told",
    [
        ("gateway.replica=3", "replica"),
        ("stubs[0].name=Not a name", "name"),
        ("stubs[0].models=many", "models"),
        ("stubs[0].autoscaling.kind=knative", "kind"),
        ("placement.hostPath=/etc", "hostPath"),
        ("broker.args={serve}", "args"),
    ],
)
def test_values_that_mean_nothing_are_refused(helm: str, mistake: str, told: str) -> None:
    with pytest.raises(subprocess.CalledProcessError) as failed:
        render(helm, None, "stubs[0].name=s", mistake)
    assert "schema" in failed.value.stderr and told in failed.value.stderr


def test_patterns_of_models_are_refused_where_they_would_select_nothing(helm: str) -> None:
    with pytest.raises(subprocess.CalledProcessError) as failed:
        render(helm, None, "stubs[0].name=s", "stubs[0].models={det_*}", "stubs[0].autoscaling.kind=hpa")
    assert "it-tensorbus-stub-s: a selector of an external metric knows no patterns" in failed.value.stderr


def test_the_plain_manifests_are_those_of_the_chart(helm: str) -> None:
    written = (DEPLOY / "kubernetes" / "tensorbus.yaml").read_text()
    assert written == rendered(helm), "run deploy/kubernetes/render.py"


def test_the_chart_has_the_version_of_the_package() -> None:
    version = re.findall(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert [load(CHART / "Chart.yaml")["appVersion"]] == version
    assert [load(DEPLOY / "kubernetes" / "kustomization.yaml")["images"][0]["newTag"]] == version


def test_every_value_of_the_chart_is_in_its_schema() -> None:
    """helm checks the ones that are set; here those that are only in the schema."""
    schema, values = load(CHART / "values.schema.json"), load(CHART / "values.yaml")
    assert schema["properties"].keys() - {"global"} == values.keys()
    assert schema["properties"]["stubDefaults"]["properties"].keys() == values["stubDefaults"].keys()
    assert schema["properties"]["gateway"]["properties"].keys() == values["gateway"].keys()


# --- the schemas of Kubernetes ------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def validate() -> Callable[[Documents, str], None]:
    validator = pytest.importorskip("kubernetes_validate", reason="there is no kubernetes-validate (pip install it)")

    def check(each: Documents, release: str) -> None:
        for document in each:
            if document["kind"] not in THEIRS:
                validator.validate(document, release, strict=True)

    return check


@pytest.mark.parametrize("release", RELEASES)
def test_kubernetes_knows_every_field(
    validate: Callable[[Documents, str], None], documents: Documents, release: str
) -> None:
    validate(documents, release)


def test_the_schema_would_find_a_field_that_it_does_not_know(validate: Callable[[Documents, str], None]) -> None:
    wrong = manifests()
    kind(wrong, "Deployment")[0]["spec"]["replica"] = 1
    with pytest.raises(Exception, match="replica"):
        validate(wrong, RELEASES[0])


def test_kustomize_puts_all_into_one_namespace(kubectl: str, validate: Callable[[Documents, str], None]) -> None:
    done = subprocess.run([kubectl, "kustomize", DEPLOY / "kubernetes"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    built = list(yaml.safe_load_all(done.stdout))
    (namespace,) = kind(built, "Namespace")
    others = [each for each in built if each is not namespace]
    assert len(others) == len(manifests())
    assert {each["metadata"]["namespace"] for each in others} == {namespace["metadata"]["name"]}
    validate(built, RELEASES[-1])


# --- what runs in the pods ----------------------------------------------------------------------------------------


def test_every_service_can_read_its_command_line_and_its_keys(
    documents: Documents, secrets: Path, tmp_path: Path
) -> None:
    """By its own parser, with the files that the pod has and no others."""
    for number, (component, pod) in enumerate(deployments(documents)):
        keys = tmp_path / str(number)
        files_of(pod, secrets, keys)
        command, *arguments = the_container(pod)["args"]
        assert command == component
        parsed = service_settings.parse(command, [each.replace("/keys/", f"{keys}/") for each in arguments], {})
        assert parsed.trust is not None  # type: ignore[attr-defined]


def test_each_side_has_its_own_secret_key_alone(documents: Documents, secrets: Path, tmp_path: Path) -> None:
    for number, (component, pod) in enumerate(deployments(documents)):
        files_of(pod, secrets, tmp_path / str(number))
        found = {path.name for path in (tmp_path / str(number)).rglob("*.*")}
        assert found == ({"broker.key", "service.pub"} if component == "broker" else {"service.key", "broker.pub"})


def test_no_key_is_in_a_manifest(documents: Documents) -> None:
    assert kind(documents, "Secret") == []
    assert "-key = " not in yaml.safe_dump(documents)


def test_services_have_no_more_rights_than_they_need(documents: Documents) -> None:
    jobs = [each["spec"]["template"]["spec"] for each in kind(documents, "Job")]
    for pod in [*jobs, *(pod for _, pod in deployments(documents))]:
        container = the_container(pod)
        assert pod["securityContext"] == {
            "runAsNonRoot": True,
            "runAsUser": 10001,
            "runAsGroup": 10001,
            "seccompProfile": {"type": "RuntimeDefault"},
        }
        for each in [container, *pod.get("initContainers", [])]:
            rights = each["securityContext"]
            assert rights["capabilities"] == {"drop": ["ALL"]} and rights["readOnlyRootFilesystem"] is True
            assert rights["allowPrivilegeEscalation"] is False and each["resources"]["limits"]["memory"]
        written = {each["mountPath"] for each in container["volumeMounts"] if not each.get("readOnly")}
        assert written <= {"/dev/shm", "/tmp", "/home/tensorbus"}
        assert pod["enableServiceLinks"] is False


def test_there_is_one_broker_and_never_two(documents: Documents) -> None:
    (broker,) = [each for each in kind(documents, "Deployment") if each["metadata"]["name"].endswith("-broker")]
    assert broker["spec"]["replicas"] == 1 and broker["spec"]["strategy"] == {"type": "Recreate"}


def test_pods_have_the_time_to_end_what_they_hold(documents: Documents) -> None:
    for component, pod in deployments(documents):
        times = [int(each) for each in re.findall(r"--exit-[a-z]+-secs=(\d+)", " ".join(the_container(pod)["args"]))]
        assert len(times) == (2 if component == "gateway" else 1)
        assert pod["terminationGracePeriodSeconds"] > sum(times)


def test_what_selects_pods_selects_those_of_one_component(documents: Documents) -> None:
    pods = [each["spec"]["template"]["metadata"]["labels"] for each in kind(documents, "Deployment")]
    selectors = [{"matchLabels": each["spec"]["selector"]} for each in kind(documents, "Service")]
    selectors += [each["spec"]["selector"] for each in kind(documents, "PodDisruptionBudget")]
    selectors += [each["spec"]["podSelector"] for each in kind(documents, "NetworkPolicy")]
    for selector in selectors:
        selected = {labels["app.kubernetes.io/component"] for labels in pods if selects(selector, labels)}
        assert len(selected) == 1, selector
    for each in kind(documents, "Deployment"):
        assert [labels for labels in pods if selects(each["spec"]["selector"], labels)] == [
            each["spec"]["template"]["metadata"]["labels"]
        ]


def test_services_dial_ports_that_there_are(documents: Documents) -> None:
    ports = {
        component: {each["name"]: each["containerPort"] for each in the_container(pod)["ports"]}
        for component, pod in deployments(documents)
    }
    assert ports["gateway"] == {"http": 8000, "grpc": 8001, "metrics": 8002}
    assert ports["broker"] == {"bus": 8003, "metrics": 8002} and ports["stub"] == {"metrics": 8002}
    for each in kind(documents, "Service"):
        component = each["spec"]["selector"]["app.kubernetes.io/component"]
        assert {port["targetPort"] for port in each["spec"]["ports"]} <= ports[component].keys()
    (broker,) = [each["metadata"]["name"] for each in kind(documents, "Service") if "publishNotReady" in str(each)]
    dialled = {each for _, pod in deployments(documents) for each in the_container(pod)["args"] if "--broker=" in each}
    assert dialled == {f"--broker=tcp://{broker}:8003"}


def test_only_gateways_and_stub_hosts_reach_the_broker(documents: Documents) -> None:
    (policy,) = [each for each in kind(documents, "NetworkPolicy") if each["metadata"]["name"].endswith("-broker")]
    (bus,) = [rule for rule in policy["spec"]["ingress"] if {"port": "bus", "protocol": "TCP"} in rule["ports"]]
    (peer,) = bus["from"]
    labels = [each["spec"]["template"]["metadata"]["labels"] for each in kind(documents, "Deployment")]
    may = {each["app.kubernetes.io/component"] for each in labels if selects(peer["podSelector"], each)}
    assert may == {"gateway", "stub"} and peer.keys() == {"podSelector"}
    assert all(rule.get("from") for rule in policy["spec"]["ingress"])


# --- health -------------------------------------------------------------------------------------------------------


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def status(url: str) -> int:
    try:
        with urllib.request.urlopen(url, timeout=20) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


@contextmanager
def running(command: str, ports: dict[str, int], models: Path) -> Iterator[None]:
    alone = ["--bind=tcp://127.0.0.1:0", f"--model-repository={models}"]
    arguments = alone if command == "broker" else [f"--broker=tcp://127.0.0.1:{free_port()}"]
    arguments += [f"--{name}-port={port}" for name, port in ports.items()]
    process = subprocess.Popen(
        [sys.executable, "-m", "tensorbus", command, *arguments], cwd=ROOT, stdout=subprocess.DEVNULL
    )
    try:
        yield
    finally:
        process.terminate()
        process.wait(30)


def test_every_probe_asks_what_the_service_answers(tmp_path: Path) -> None:
    """Alone: a broker is ready then, the others only live."""
    pods = dict(deployments(manifests()))
    with ExitStack() as stack:
        ports = {name: {"metrics": free_port()} for name in pods}
        ports["gateway"] |= {"http": free_port(), "grpc": free_port()}
        for name in pods:
            stack.enter_context(running(name, ports[name], tmp_path))
        for name, pod in pods.items():
            asked = {}
            for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
                get = the_container(pod)[probe]["httpGet"]
                asked[probe] = f"http://127.0.0.1:{ports[name][get['port']]}{get['path']}"
            deadline = time.monotonic() + 60
            while status(asked["startupProbe"]) != 200:
                assert time.monotonic() < deadline, name
                time.sleep(0.1)
            assert status(asked["livenessProbe"]) == 200
            ready = status(asked["readinessProbe"])
            assert ready == 200 if name == "broker" else 400 <= ready < 600 and ready != 404, (name, ready)


# --- placements, scaling, monitoring ------------------------------------------------------------------------------


def test_on_a_shared_host_all_pods_have_one_directory_of_one_node(helm: str) -> None:
    found = render(helm, SHARED_HOST)
    labels = [each["spec"]["template"]["metadata"]["labels"] for each in kind(found, "Deployment")]
    for _, pod in deployments(found):
        assert {"name": "shm", "hostPath": {"path": "/dev/shm/tensorbus", "type": "DirectoryOrCreate"}} in pod[
            "volumes"
        ]
        (term,) = pod["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        assert term["topologyKey"] == "kubernetes.io/hostname"
        assert all(selects(term["labelSelector"], each) for each in labels)
        (opens,) = pod["initContainers"]
        assert opens["command"] == ["chmod", "1777", "/dev/shm"]


def test_apart_each_pod_has_memory_of_its_own_and_pods_spread(helm: str) -> None:
    for _, pod in deployments(render(helm)):
        assert {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}} in pod["volumes"]
        assert {each["topologyKey"] for each in pod["topologySpreadConstraints"]} == {
            "kubernetes.io/hostname",
            "topology.kubernetes.io/zone",
        }
        assert "initContainers" not in pod and "affinity" not in pod


def test_a_group_has_its_models_its_image_and_its_gpus(helm: str) -> None:
    pods = {
        each["metadata"]["name"]: the_container(each["spec"]["template"]["spec"])
        for each in kind(render(helm, ACROSS_NODES), "Deployment")
    }
    gpu, text = pods["it-tensorbus-stub-gpu"], pods["it-tensorbus-stub-text"]
    assert [each for each in gpu["args"] if "--model=" in each] == ["--model=det_*", "--model=rec_[!x]*"]
    assert gpu["resources"]["limits"] == {"memory": "4Gi", "nvidia.com/gpu": 1}
    assert "nvidia.com/gpu" not in text["resources"]["limits"]
    assert (gpu["image"], text["image"]) == (
        "registry.example.com/tensorbus:0.1.0",
        "registry.example.com/tensorbus-text:0.1.0",
    )


def test_what_is_scaled_has_no_number_of_its_own(helm: str) -> None:
    """Else every upgrade would set it back."""
    found = render(helm, ACROSS_NODES)
    targets = [each["spec"]["scaleTargetRef"] for each in found if "scaleTargetRef" in each.get("spec", {})]
    numbers = {each["metadata"]["name"]: each["spec"].get("replicas") for each in kind(found, "Deployment")}
    assert {each["name"] for each in targets} == {name for name, number in numbers.items() if number is None}
    assert len(targets) == 3 and all(each["kind"] == "Deployment" for each in targets)


def test_groups_are_scaled_on_their_own_models(helm: str) -> None:
    group = load(ACROSS_NODES)["stubs"][0]
    ((name, expression),) = query_models(render(helm, ACROSS_NODES))
    assert name == "it-tensorbus-stub-gpu"
    for model in ("det_1", "det", "xdet_1", "rec_a", "rec_x1", "rec_", "detx"):
        assert bool(re.fullmatch(expression, model)) == fits(model, group["models"]), model


@pytest.mark.parametrize("models", [["a.b"], ["a?c", "x"], ["*"], ["[ab]*"]])
def test_patterns_mean_the_same_to_prometheus(helm: str, models: list[str]) -> None:
    sets = ("stubs[0].name=s", f"stubs[0].models={{{','.join(models)}}}", "stubs[0].autoscaling.kind=keda")
    ((_, expression),) = query_models(render(helm, None, *sets))
    for model in ("a.b", "axb", "abc", "x", "ab", "b", "xa"):
        assert bool(re.fullmatch(expression, model)) == fits(model, models), model


def test_alerts_are_those_of_the_rule_file_for_this_namespace(helm: str, promtool: str, tmp_path: Path) -> None:
    (rule,) = kind(render(helm, ACROSS_NODES), "PrometheusRule")
    path = tmp_path / "rules.yml"
    path.write_text(yaml.safe_dump(rule["spec"]))
    done = subprocess.run([promtool, "check", "rules", path], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    rules, source = (
        [each for group in groups for each in group["rules"]]
        for groups in (rule["spec"]["groups"], load(DEPLOY / "prometheus" / "rules.yml")["groups"])
    )
    for ours, theirs in zip(rules, source, strict=True):
        names = re.findall(r"\b(?:up|(?:tensorbus|nv)_[a-z_]+)\b", theirs["expr"])
        assert ours["expr"].count('namespace="prod"') == len(names) > 0
        assert re.sub(r'namespace="prod",?', "", ours["expr"]).replace("{}", "").split() == theirs["expr"].split()
        assert {**ours, "expr": ""} == {**theirs, "expr": ""}


def test_prometheus_names_jobs_as_the_rules_do(helm: str) -> None:
    found = render(helm, ACROSS_NODES)
    (monitor,) = kind(found, "PodMonitor")
    labels = [each["spec"]["template"]["metadata"]["labels"] for each in kind(found, "Deployment")]
    assert {
        each[monitor["spec"]["jobLabel"]] for each in labels if selects(monitor["spec"]["selector"], each)
    } == SERVICES


# --- KServe -------------------------------------------------------------------------------------------------------


def test_the_runtime_of_kserve_serves_what_kserve_brings() -> None:
    runtime, example = load(KSERVE / "serving-runtime.yaml"), load(KSERVE / "inference-service.yaml")
    container = the_container(runtime["spec"])
    command, *arguments = container["args"]
    parsed = settings.parse_serve(arguments, {})
    assert command == "serve" and parsed.model_repository == ("/mnt/models",)
    assert container["readinessProbe"]["httpGet"]["port"] == parsed.http_port
    assert container["name"] == "kserve-container"
    assert "/dev/shm" in {each["mountPath"] for each in container["volumeMounts"]}
    model = example["spec"]["predictor"]["model"]
    assert model["runtime"] == runtime["metadata"]["name"]
    formats = [(each["name"], each["version"]) for each in runtime["spec"]["supportedModelFormats"]]
    assert (model["modelFormat"]["name"], model["modelFormat"]["version"]) in formats
    assert model["protocolVersion"] in runtime["spec"]["protocolVersions"]
