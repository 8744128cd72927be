"""Model repositories on disk: which models there are, their configuration, which versions to serve.

Reads files, never a model's code. Log lines are returned as data; their texts and those of the errors name paths,
so they are for operators: a failed poll reaches clients as a bare name in the repository index.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from google.protobuf.text_format import ParseError

from broker.config_backend import complete_backend
from broker.config_io import check_io
from broker.config_json import from_json
from broker.config_normalize import normalize
from broker.config_reading import read_file
from broker.config_validation import check_model
from broker.model_config import ModelConfig, from_message, parse_text
from broker.places import DUPLICATE_REASON, NOT_FOUND, find, is_directory, not_one, shown, subdirectories
from broker.proto import Message, ModelConfigMessage
from broker.repository_agents import run_agents
from protocol.errors import InternalError, InvalidArgument, ServingError

CONFIG_FILE = "config.pbtxt"
REQUIREMENTS_FILE = "requirements.txt"
_CUSTOM_STUB = "triton_python_backend_stub"
VARIANTS = "configs"  # a model's folder of further config files, chosen by --model-config-name
CONFIG_ENTRIES = (CONFIG_FILE, VARIANTS)
NO_VERSIONS = frozenset({"warmup", "initial_state", VARIANTS})


class LogLine(NamedTuple):
    level: str  # as that of Say
    text: str


@dataclass(frozen=True, slots=True)
class ModelDirectory:
    """A model whose configuration was read. ``config_given`` tells whether there was a file."""

    name: str  # what the model is known by
    path: str
    config: ModelConfig
    config_given: bool
    requirements: str = ""  # path of a requirements.txt, if there is one


@dataclass(frozen=True, slots=True)
class PollFailure:
    """A directory that is no model we can load. Duplicates are UNAVAILABLE with DUPLICATE_REASON in the index, the
    others a bare name."""

    name: str
    text: str
    is_duplicate: bool = False


@dataclass(slots=True)
class Scan:
    """What the repositories hold, by ascending name."""

    models: list[ModelDirectory] = field(default_factory=list)
    failures: list[PollFailure] = field(default_factory=list)
    log: list[LogLine] = field(default_factory=list)

    def __iadd__(self, other: Scan) -> Scan:
        self.models += other.models
        self.failures += other.failures
        self.log += other.log
        return self


def check_repositories(repositories: Iterable[str]) -> None:
    """Raises InternalError or InvalidArgument for a path that is no directory."""
    for path in repositories:
        if shown(path) != path:
            raise InvalidArgument(f"repository path '{shown(path)}' is not UTF-8")
        if not os.path.exists(path):
            raise InternalError(f"failed to stat file {path}")
        if not os.path.isdir(path):
            raise InvalidArgument("repository path is not a valid directory")


def scan(
    repositories: Sequence[str],
    auto_complete: bool = True,
    config_name: str = "",
    only: Collection[str] | None = None,
    localise: Callable[[str], None] = lambda directory: None,
    namespaces: Sequence[str] = (),
) -> Scan:
    """Poll every model of every repository, or only those; ``localise`` is called with each directory before it is
    read, and may raise ServingError. Raises as ``check_repositories``; one bad model never hides another."""
    check_repositories(repositories)
    places = find(list(dict.fromkeys(repositories)), namespaces)
    found = Scan()
    for name in sorted(places if only is None else only):
        paths = places.get(name, [])
        model = shown(name)
        if len(paths) != 1:
            if paths:
                found.failures.append(PollFailure(model, DUPLICATE_REASON, is_duplicate=True))
            else:
                found.failures.append(PollFailure(model, NOT_FOUND))
            found.log.append(LogLine("error", not_one(model, paths)))
            continue
        try:
            localise(paths[0])
            found.models.append(poll(name, paths[0], auto_complete, config_name))
        except ServingError as error:
            found.failures.append(PollFailure(model, str(error)))
            found.log.append(LogLine("error", poll_failed(model, error)))
    return found


def poll_failed(model: str, error: ServingError) -> str:
    """For the log."""
    return f"Poll failed for model directory '{model}': {error}{place_and_reason(error)}"


def place_and_reason(error: ServingError) -> str:
    """For who may see paths: if the text of a configuration cannot be parsed, where and why; else ""."""
    cause = error.__cause__
    return f": {cause}" if isinstance(cause, (ParseError, UnicodeDecodeError)) else ""


def poll(
    model: str, path: str, auto_complete: bool = True, config_name: str = "", config_json: str | None = None
) -> ModelDirectory:
    """Read, complete, normalise and check the configuration of a model, which is named as its directory is;
    ``config_json`` takes the place of its file. Raises ServingError."""
    name = os.path.basename(path)
    if shown(name) != name:
        raise InvalidArgument("the directory's name is not UTF-8")
    config_path = _config_path(path, config_name)
    config_given = os.path.exists(config_path)
    if config_json is not None:
        message = _read_json(config_json)
    else:
        message = ModelConfigMessage() if auto_complete and not config_given else _read_config(config_path)
    run_agents(message, path)
    complete_backend(message, name, _first_version_files(path))
    normalize(message)
    check_model(message)
    if not auto_complete:
        check_io(message)
    if message.name != name:
        raise InvalidArgument(
            f"unexpected directory name '{name}' for model '{message.name}', directory name must equal model name"
        )
    requirements = os.path.join(path, REQUIREMENTS_FILE)
    return ModelDirectory(
        model, path, from_message(message), config_given, requirements if os.path.isfile(requirements) else ""
    )


def versions_to_load(directory: ModelDirectory) -> tuple[list[int], list[LogLine]]:
    """By the version policy, ascending. Raises InvalidArgument if there is none."""
    log: list[LogLine] = []
    present = set(_versions(directory.path, log))
    policy = directory.config.version_policy
    for version in policy.specific or ():
        if version not in present:
            text = (
                f"version {version} is specified for model '{directory.name}', but the version directory is not present"
            )
            log.append(LogLine("error", text))
    versions = policy.choose(present)
    if not versions:
        raise InvalidArgument(
            f"at least one version must be available under the version policy of model '{directory.name}'"
        )
    if os.path.lexists(os.path.join(directory.path, _CUSTOM_STUB)):
        text = f"the {_CUSTOM_STUB} of model '{directory.name}' is not used: any Python runs the model without one"
        log.append(LogLine("warning", text))
    return versions, log


def _versions(path: str, log: list[LogLine]) -> Iterable[int]:
    for name in subdirectories(path):
        if name in NO_VERSIONS:
            continue
        if len(name) > 1 and name.startswith("0"):
            text = f"ignore version directory '{name}' which contains leading zeros in its directory name"
            log.append(LogLine("warning", text))
        elif not _is_version(name):
            text = f"ignore version directory '{name}' which fails to convert to integral number"
            log.append(LogLine("warning", text))
        else:
            yield int(name)


def _is_version(name: str) -> bool:
    return name.isascii() and name.isdecimal() and int(name) < 2**63


def _first_version_files(path: str) -> dict[str, bool]:
    """Entries of the first version directory with whether each is a directory; a stray folder counts only if there
    is no version."""
    names = [name for name in subdirectories(path) if name not in NO_VERSIONS]
    if not names:
        return {}
    first = min(names, key=lambda name: (not _is_version(name), name))
    try:
        with os.scandir(os.path.join(path, first)) as entries:
            return {entry.name: is_directory(entry) for entry in entries}
    except OSError as error:
        raise InternalError(f"failed to open directory {os.path.join(path, first)}") from error


def _config_path(path: str, config_name: str) -> str:
    variant = os.path.join(path, VARIANTS, f"{config_name}.pbtxt")
    return variant if config_name and os.path.exists(variant) else os.path.join(path, CONFIG_FILE)


def _read_json(text: str) -> Message:
    try:
        return from_json(text)
    except InvalidArgument as error:
        raise InvalidArgument(f"Invalid config override: {error}") from None


def _read_config(path: str) -> ModelConfigMessage:
    try:
        text = read_file(path)
    except OSError as error:
        raise InternalError(f"failed to open text file for read {path}: {error.strerror}") from error
    return parse_text(text, path)
