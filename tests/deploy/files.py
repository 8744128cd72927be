"""The files of deploy/, read as the programs that they are for read them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"


class ComposeLoader(yaml.SafeLoader):
    """Knows compose's ``!reset`` and ``!override``, which stand before what replaces all of the file before."""


def _tagged(loader: yaml.SafeLoader, _suffix: str, node: yaml.Node) -> Any:
    if isinstance(node, yaml.SequenceNode):
        return loader.construct_sequence(node, deep=True)
    return loader.construct_mapping(node, deep=True)  # type: ignore[arg-type]


ComposeLoader.add_multi_constructor("!", _tagged)


def compose_files() -> list[Path]:
    return sorted(DEPLOY.glob("compose*.yaml"))


def load(path: Path) -> Any:
    return yaml.load(path.read_text(), ComposeLoader)
