"""What the Helm chart renders, and what each pod of it is given."""

from __future__ import annotations

import fnmatch
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from tests.deploy.files import DEPLOY

CHART = DEPLOY / "helm" / "tensorbus"
EXAMPLES = sorted((DEPLOY / "helm" / "examples").glob("*.yaml"))
EVERY = [None, *EXAMPLES]  # None: the values of the chart
SERVICES = {"broker", "gateway", "stub"}


@cache
def render(helm: str, values: Path | None = None, *sets: str) -> list[dict[str, Any]]:
    """Release ``it`` in the namespace ``prod``. Raises CalledProcessError."""
    command = [helm, "template", "it", CHART, "--namespace", "prod"]
    command += ["--values", values] if values else []
    command += [part for each in sets for part in ("--set", each)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return [each for each in yaml.safe_load_all(done.stdout) if each]


def manifests() -> list[dict[str, Any]]:
    """The plain ones."""
    return [each for each in yaml.safe_load_all((DEPLOY / "kubernetes" / "tensorbus.yaml").read_text()) if each]


def kind(documents: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    return [each for each in documents if each["kind"] == name]


def deployments(documents: list[dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Component and spec of the pod of each."""
    for each in kind(documents, "Deployment"):
        template = each["spec"]["template"]
        yield template["metadata"]["labels"]["app.kubernetes.io/component"], template["spec"]


def the_container(pod: dict[str, Any]) -> dict[str, Any]:
    (container,) = pod["containers"]
    found: dict[str, Any] = container
    return found


def selects(selector: dict[str, Any], labels: dict[str, str]) -> bool:
    return all(labels.get(key) == value for key, value in selector.get("matchLabels", {}).items()) and all(
        labels.get(each["key"]) in each["values"] for each in selector.get("matchExpressions", [])
    )


def files_of(pod: dict[str, Any], secrets: Path, into: Path) -> None:
    """Lays the files of the volume ``keys`` out in ``into`` as the kubelet would; the secret's are in ``secrets``."""
    (volume,) = [each for each in pod["volumes"] if each["name"] == "keys"]
    sources = [each["secret"] for each in volume.get("projected", {}).get("sources", [])] or [volume["secret"]]
    for source in sources:
        for item in source["items"]:
            target = into / item["path"]
            if not source.get("optional"):
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes((secrets / item["key"]).read_bytes())


def query_models(documents: list[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    """Name and regular expression of the models of each ScaledObject."""
    for each in kind(documents, "ScaledObject"):
        (trigger,) = each["spec"]["triggers"]
        (models,) = re.findall(r'model=~"((?:[^"\\]|\\.)*)"', trigger["metadata"]["query"])
        yield each["metadata"]["name"], models.replace("\\\\", "\\")


def fits(model: str, patterns: list[str]) -> bool:
    """As the broker decides it."""
    return any(fnmatch.fnmatchcase(model, each) for each in patterns)
