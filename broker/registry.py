"""Which models and versions there are and what may be said of them: lookups, readiness, the repository index."""

from __future__ import annotations

from collections.abc import Iterator

from broker.model import ModelVersion, VersionState
from protocol.errors import InvalidArgument, NotFound, ServingError, Unavailable
from protocol.signature import IndexEntry, Signature

_UNKNOWN = "Request for unknown model: "


class Registry:
    """Every model name of the repositories, with the versions that a load was tried for."""

    def __init__(self) -> None:
        self._models: dict[str, dict[int, ModelVersion]] = {}
        self._reasons: dict[str, str] = {}  # of models that have no version to carry it
        self._failures: set[str] = set()

    def add_name(self, model: str, reason: str = "") -> None:
        """A model whose directory could not be read as one: the index has its name, requests do not find it."""
        self._models.setdefault(model, {})
        self._failures.add(model)
        if reason:
            self._reasons[model] = reason

    def add_failure(self, model: str) -> None:
        """A model without a version to load, of which the index says nothing."""
        self._failures.add(model)

    def add(self, version: ModelVersion) -> None:
        self._models.setdefault(version.name, {})[version.version] = version

    def __iter__(self) -> Iterator[ModelVersion]:
        for versions in self._models.values():
            yield from versions.values()

    def find(self, model: str, version: int) -> ModelVersion:
        """The version a request means; -1 is the highest READY one. Raises NotFound or Unavailable."""
        versions = self._models.get(model)
        if not versions:
            raise NotFound(f"{_UNKNOWN}'{model}' is not found")
        if version < 0:
            return self._highest_ready(model, versions)
        found = versions.get(version)
        if found is None:
            raise NotFound(f"{_UNKNOWN}'{model}' version {version} is not found")
        if found.state is not VersionState.READY:
            raise Unavailable(f"{_UNKNOWN}'{model}' version {version} is not at ready state")
        return found

    @staticmethod
    def _highest_ready(model: str, versions: dict[int, ModelVersion]) -> ModelVersion:
        ready = [number for number, one in versions.items() if one.state is VersionState.READY]
        if not ready:
            raise NotFound(f"{_UNKNOWN}'{model}' has no available versions")
        return versions[max(ready)]

    def knows(self, model: str) -> bool:
        """Whether a load of it was ever tried."""
        return bool(self._models.get(model))

    def signature(self, model: str, version: int) -> Signature:
        signature = self.find(model, version).signature
        assert signature is not None  # READY versions have one
        return signature

    def ready_versions(self, model: str) -> list[int]:
        self.find(model, -1)
        return sorted(number for number, one in self._models[model].items() if one.state is VersionState.READY)

    def servable(self, model: str, version: int) -> ModelVersion | None:
        """Whose readiness is asked for; None if there is no such READY version. Raises NotFound for what was never
        known."""
        try:
            return self.find(model, version)
        except Unavailable:
            return None
        except NotFound:
            if model in self._models and version < 0:
                return None
            raise

    def all_loaded(self) -> bool:
        """Nothing is loading or has failed."""
        return not self._failures and all(one.state is VersionState.READY for one in self)

    def unfinished(self) -> list[ModelVersion]:
        """Those of which an instance may still have a process."""
        return [one for one in self if not one.gone()]

    def select(self, model: str, version: int) -> list[ModelVersion]:
        """The READY versions that statistics are asked of. Raises InvalidArgument."""
        if not model:
            return [one for one in self if one.state is VersionState.READY]
        try:
            self.find(model, -1)
        except ServingError:
            raise InvalidArgument(f"requested model '{model}' is not available") from None
        chosen = [
            one
            for number, one in sorted(self._models[model].items())
            if one.state is VersionState.READY and version in (-1, number)
        ]
        if not chosen:
            raise InvalidArgument(f"requested model version is not available for model '{model}'")
        return chosen

    def loading(self) -> list[str]:
        """The models of which a version is still coming up."""
        return sorted({one.name for one in self if one.state is VersionState.LOADING})

    def index(self, ready: bool) -> list[IndexEntry]:
        rows = []
        for name, versions in sorted(self._models.items()):
            if not versions and not ready:
                reason = self._reasons.get(name, "")
                rows.append(IndexEntry(name, 0, VersionState.UNAVAILABLE.value if reason else "", reason))
            for number, one in sorted(versions.items()):
                if not ready or one.state is VersionState.READY:
                    rows.append(IndexEntry(name, number, one.state.value, one.reason))
        return rows

    def check(self) -> None:
        for one in self:
            one.check()
