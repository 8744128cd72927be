"""Writes tensorbus.yaml beside it: the manifests of the Helm chart with the values beside it, for those without Helm.

python deploy/kubernetes/render.py [HELM]
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).parent
CHART = HERE.parent / "helm" / "tensorbus"
MANIFESTS = HERE / "tensorbus.yaml"

_TITLE = (
    "# Made from deploy/helm/tensorbus by deploy/kubernetes/render.py: change the chart, or patch this by kustomize.\n"
)
_OF_HELM = ("helm.sh/", "app.kubernetes.io/managed-by")


class _Dumper(yaml.SafeDumper):
    """Text of several lines is written as such; nothing is written as an alias."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


_Dumper.add_representer(
    str,
    lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None),
)


def rendered(helm: str = "helm") -> str:
    """What tensorbus.yaml should hold. Raises CalledProcessError."""
    done = subprocess.run(
        [helm, "template", "tensorbus", CHART, "--values", HERE / "values.yaml"],
        check=True,
        capture_output=True,
        text=True,
    )
    documents = [_without_helm(each) for each in yaml.safe_load_all(done.stdout) if each]
    documents.sort(key=lambda each: (each["kind"], each["metadata"]["name"]))
    return _TITLE + yaml.dump_all(documents, Dumper=_Dumper, sort_keys=False, width=120, explicit_start=True)


def _without_helm(value: Any) -> Any:
    """Without what only Helm reads, and the maps that hold nothing else."""
    if isinstance(value, list):
        return [_without_helm(each) for each in value]
    if not isinstance(value, dict):
        return value
    kept = {key: _without_helm(each) for key, each in value.items() if not key.startswith(_OF_HELM)}
    return {key: each for key, each in kept.items() if each or not value[key]}


if __name__ == "__main__":
    MANIFESTS.write_text(rendered(*sys.argv[1:2]))
