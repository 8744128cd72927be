"""A release of the chart on a cluster of one node, this machine, and what can be asked of it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import urllib.request
from pathlib import Path
from typing import Any

import yaml

from tests.deploy.manifests import CHART
from tests.deploy.stack import eventually

NAME = "tensorbus"
SMALL = {"requests": {"cpu": "10m", "memory": "64Mi"}, "limits": {"memory": "1Gi"}}


def why_not() -> str:
    """Why there is no cluster to install to; "" if there is one."""
    for command in (["helm", "version"], ["kubectl", "get", "nodes"]):
        try:
            done = subprocess.run(command, capture_output=True, text=True)
        except OSError as error:
            return f"{command[0]}: {error.strerror}"
        if done.returncode:
            return f"{' '.join(command)}: {done.stderr.strip().splitlines()[-1]}"
    return ""


class Release:
    """``http`` and ``grpc`` are reached from the node alone."""

    def __init__(self, namespace: str, models: Path, work: Path, **values: Any) -> None:
        self._namespace = namespace
        self._work = work
        repository, _, tag = os.environ.get("TENSORBUS_IMAGE", "tensorbus:0.1.0").rpartition(":")
        self.values: dict[str, Any] = {
            "image": {"repository": repository, "tag": tag, "pullPolicy": "Never"},
            "modelRepository": {"volume": {"hostPath": {"path": str(models), "type": "Directory"}}},
            "broker": {"resources": SMALL},
            "gateway": {"resources": SMALL},
            "stubs": [{"name": "all", "models": ["*"], "replicas": 2, "resources": SMALL}],
            "podDisruptionBudget": {"enabled": "policy/v1" in self.kubectl("api-versions").split()},
            **values,
        }
        self.http = self.grpc = ""

    def kubectl(self, *arguments: str, timeout_s: float = 300.0) -> str:
        return self._run("kubectl", "--namespace", self._namespace, *arguments, timeout_s=timeout_s)

    def helm(self, verb: str, *arguments: str | Path) -> str:
        return self._run("helm", verb, NAME, *arguments, "--namespace", self._namespace, timeout_s=600)

    def _run(self, *command: str | Path, timeout_s: float) -> str:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s)
        assert done.returncode == 0, f"{command}: {done.stdout[-3000:]}{done.stderr[-3000:]}"
        return done.stdout

    def apply(self, verb: str, *arguments: str) -> None:
        """``install`` or ``upgrade``; until all is ready."""
        values = self._work / "values.yaml"
        values.write_text(yaml.safe_dump(self.values))
        self.helm(verb, CHART, "--values", values, "--wait", "--timeout", "5m", *arguments)
        address = json.loads(self.kubectl("get", "service", NAME, "--output=json"))["spec"]["clusterIP"]
        self.http, self.grpc = f"{address}:8000", f"{address}:8001"
        eventually(lambda: self._get(f"http://{self.http}/v2/models/double/ready") is not None, 60, "model ready")

    def remove(self) -> None:
        self.helm("uninstall", "--wait")
        self.kubectl("delete", "secret", f"{NAME}-keys")
        eventually(lambda: not self.pods(), 120, "no pod left")

    def scale(self, replicas: int) -> None:
        """The stub hosts; until there are so many and no more."""
        self.kubectl("scale", "deployment", f"{NAME}-stub-all", f"--replicas={replicas}")
        self.kubectl("rollout", "status", "deployment", f"{NAME}-stub-all", "--timeout=180s")
        eventually(lambda: len(self.pods("stub")) == replicas, 120, f"{replicas} stub hosts")

    def restart(self, name: str) -> None:
        """Pod by pod; until all are new."""
        self.kubectl("rollout", "restart", "deployment", f"{NAME}-{name}")
        self.kubectl("rollout", "status", "deployment", f"{NAME}-{name}", "--timeout=180s")

    def pods(self, component: str = "") -> list[dict[str, Any]]:
        labels = f"app.kubernetes.io/instance={NAME}" + (
            f",app.kubernetes.io/component={component}" if component else ""
        )
        found: list[dict[str, Any]] = json.loads(self.kubectl("get", "pods", "--selector", labels, "--output=json"))[
            "items"
        ]
        return found

    def logs(self) -> str:
        described = self.kubectl("get", "pods,events", "--output=wide")
        selector = f"app.kubernetes.io/instance={NAME}"
        return described + self.kubectl(
            "logs", "--selector", selector, "--prefix", "--tail=200", "--max-log-requests=20"
        )

    def metric(self, component: str, series: str) -> float:
        """Of all pods of the component together."""
        total = 0.0
        for pod in self.pods(component):
            text = self._get(f"http://{pod['status']['podIP']}:8002/metrics").decode()
            total += sum(map(float, re.findall(rf"^{re.escape(series)} (\S+)$", text, re.MULTILINE)))
        return total

    def _get(self, url: str) -> bytes:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return bytes(answer.read())
