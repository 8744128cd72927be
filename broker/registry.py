"""Which models and versions there are and what may be said of them: lookups, readiness, the repository index."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from broker.config_steps import step_models
from broker.model import UNLOADED, ModelVersion, VersionSource, VersionState
from broker.places import candidates, identifier
from broker.sequences import Sequences
from protocol.errors import InvalidArgument, NotFound, ServingError, Unavailable
from protocol.model_lookup import no_version_ready, unknown_model, unknown_version, version_not_ready
from protocol.signature import IndexEntry, Signature


class Registry:
    """The models of the repositories, and a row for each of their versions that a load was tried for.

    A version without a row is on its way up behind one that serves, or on its way out behind its successor. With
    namespaces a model is known by its identifier (places.py), and a name may mean one of several."""

    def __init__(self, namespaces: Sequence[str] = ()) -> None:
        self._namespaces = namespaces
        self._names: dict[str, str] = {}  # what the repositories hold, with the reason if it is no model
        self._models: dict[str, dict[int, ModelVersion]] = {}
        self._behind: dict[ModelVersion, None] = {}  # without a row; an ordered set
        self._failures: set[str] = set()
        self._without_versions: set[str] = set()
        self._names_are_complete = False
        self._found: dict[tuple[str, int], ModelVersion] = {}  # by ``find``, since rows were last given

    def add_name(self, model: str, reason: str = "") -> None:
        """A model whose directory could not be read as one: the index has its name, requests do not find it."""
        self._names[model] = reason
        self._failures.add(model)

    def add_failure(self, model: str) -> None:
        """A model without a version to load, of which the index says nothing."""
        self._failures.add(model)
        self._without_versions.add(model)

    def forget_failure(self, model: str) -> None:
        """It loads after all, or nobody wants it any more."""
        self._failures.discard(model)
        self._without_versions.discard(model)

    def set_names(self, names: Mapping[str, str]) -> None:
        """What the repositories hold now."""
        self._names = dict(names)
        self._names_are_complete = True

    def add(self, version: ModelVersion) -> None:
        """A new version: the row is its own at once, unless there is one that serves."""
        row = self._models.setdefault(version.name, {}).get(version.version)
        if row is not None and row.state is VersionState.READY:
            self._behind[version] = None
        else:
            self.give_row(version)

    def give_row(self, version: ModelVersion) -> None:
        self._found.clear()
        rows = self._models[version.name]
        row = rows.get(version.version)
        if row is not None and row is not version and not row.gone():
            self._behind[row] = None
        self._behind.pop(version, None)
        rows[version.version] = version

    def drop(self, version: ModelVersion) -> None:
        """It is gone; its row stays, if it has one."""
        self._behind.pop(version, None)

    def rows(self, model: str) -> list[ModelVersion]:
        return list(self._models.get(model, {}).values())

    def __iter__(self) -> Iterator[ModelVersion]:
        """Those without a row, too."""
        yield from self._rows()
        yield from self._behind

    def _rows(self) -> Iterator[ModelVersion]:
        for versions in self._models.values():
            yield from versions.values()

    def listed(self) -> Iterator[ModelVersion]:
        """Those with a row."""
        return self._rows()

    @property
    def failures(self) -> set[str]:
        """The models that could not be read, or had nothing to load."""
        return self._failures

    def serving(self) -> list[ModelVersion]:
        return [one for one in self._rows() if one.state is VersionState.READY]

    def with_models(self, version: ModelVersion) -> list[ModelVersion]:
        """The version, and the models of an ensemble, and theirs."""
        found = [version]
        for one in found:  # it grows
            for step in one.plan.steps if one.plan is not None else ():
                rows = self._models.get(step.model, {})
                ready = [number for number, row in rows.items() if row.state is VersionState.READY]
                part = rows.get(step.version if step.version >= 0 else max(ready, default=-1))
                if part is not None and part not in found:
                    found.append(part)
        return found

    # --- names ------------------------------------------------------------------------------------------------------

    def meant(self, name: str) -> str:
        """The model. Raises InvalidArgument or NotFound for a name that may mean any number but one."""
        if not self._namespaces or (name in self._models and name not in self._candidates(name)[:-1]):
            return name
        known = [model for model in self._candidates(name) if self.knows(model)]
        found = [model for model in known if any(map(_is_wanted, self.rows(model)))]
        if len(found) > 1:
            raise InvalidArgument(
                f"There are {len(found)} identifiers of model '{name}' in global map, model namespace must be provided "
                "to resolve ambiguity."
            )
        if not known:
            raise InvalidArgument(str(unknown_model(name)))
        if not found:
            raise NotFound(f"Identifier of model '{name}' is not found in global map")
        return found[0]

    def _candidates(self, name: str) -> list[str]:
        """The last one has no namespace: its files came with a request."""
        return [*candidates(name, self._namespaces), name]

    def loaded(self, name: str) -> list[str]:
        """The models of this name that a load was tried for."""
        return [model for model in self._candidates(name) if self.knows(model)] if self._namespaces else [name]

    def part(self, namespace: str, name: str) -> str | None:
        """The model that an ensemble of a namespace means: the one beside it if there is one, else the only one."""
        if not self._namespaces:
            return name
        own = identifier(namespace, name)
        serve = [model for model in self._candidates(name) if self._serves(model)]
        if own in serve or (not serve and any(map(_is_wanted, self.rows(own)))):
            return own
        return serve[0] if len(serve) == 1 else None

    def has_parts(self, ensemble: VersionSource) -> bool:
        """Whether all its models serve."""
        parts = [self.part(ensemble.namespace, name) for name, _ in step_models(ensemble.config)]
        return all(part is not None and self._serves(part) for part in parts)

    def _serves(self, model: str) -> bool:
        return any(row.state is VersionState.READY for row in self.rows(model))

    @property
    def has_namespaces(self) -> bool:
        return bool(self._namespaces)

    def names_in_namespaces(self) -> set[str]:
        """Those that may mean one of several models."""
        return {self.name_of(model) for model in (*self._models, *self._failures)} if self._namespaces else set()

    def name_of(self, model: str) -> str:
        """Without its namespace."""
        spaces = (f"{namespace}::" for namespace in self._namespaces if model.startswith(f"{namespace}::"))
        return model.removeprefix(max(spaces, key=len, default=""))

    # --- lookups ----------------------------------------------------------------------------------------------------

    def for_request(self, model: str, version: int, now: int) -> ModelVersion:
        """As ``find``, but what has been replaced since the gateway looked still takes a request."""
        if self._namespaces:
            model = self.meant(model)
        found = self._models.get(model, {}).get(version)
        return found if found is not None and now < found.accepts_until else self.find(model, version)

    def running(self, version: ModelVersion, sequences: Sequences, id: int | str) -> ModelVersion:
        """``version``, or one that it has replaced, if the sequence runs there still and the inputs are the same."""
        if sequences.is_live(id):
            return version
        for one in self._behind:
            if one.replaced and (one.name, one.version) == (version.name, version.version):
                assert one.signature is not None
                same = one.signature.inputs == version.checker.signature.inputs
                if same and one.sequences is not None and one.sequences.is_live(id):
                    return one
        return version

    def find(self, model: str, version: int) -> ModelVersion:
        """The version a request means; -1 is the highest READY one. Raises ServingError."""
        if self._namespaces:  # what a name means changes with what is loading, too
            return self._find(self.meant(model), version)
        found = self._found.get((model, version))
        if found is None or found.state is not VersionState.READY:
            found = self._found[model, version] = self._find(model, version)
        return found

    def _find(self, model: str, version: int) -> ModelVersion:
        versions = self._models.get(model, {})
        if not versions and model not in self._without_versions:
            raise unknown_model(model)
        if version < 0:
            return self._highest_ready(model, versions)
        found = versions.get(version)
        if found is None:
            raise unknown_version(model, version)
        if found.state is not VersionState.READY:
            raise version_not_ready(model, version)
        return found

    @staticmethod
    def _highest_ready(model: str, versions: dict[int, ModelVersion]) -> ModelVersion:
        highest: ModelVersion | None = None
        for one in versions.values():
            if one.state is VersionState.READY and (highest is None or one.version > highest.version):
                highest = one
        if highest is None:
            raise no_version_ready(model)
        return highest

    def knows(self, model: str) -> bool:
        """Whether a load of it was ever tried."""
        return bool(self._models.get(model))

    def signature(self, model: str, version: int) -> Signature:
        signature = self.find(model, version).signature
        assert signature is not None  # READY versions have one
        return signature

    def ready_versions(self, model: str) -> list[int]:
        self.find(model, -1)
        return sorted(
            number for number, one in self._models[self.meant(model)].items() if one.state is VersionState.READY
        )

    def servable(self, model: str, version: int) -> ModelVersion | None:
        """Whose readiness is asked for; None if there is no such READY version. Raises NotFound for what was never
        known."""
        try:
            return self.find(model, version)
        except Unavailable:
            return None
        except NotFound:
            if version < 0 and (model in self._models or model in self._failures):
                return None
            raise

    def all_loaded(self) -> bool:
        """Nothing is loading or has failed; what was unloaded is no failure."""
        return not self._failures and all(map(_as_it_should_be, self._rows()))

    def failed(self) -> set[str]:
        """The models that could not be loaded."""
        rows = (one for one in self._rows() if one.state is VersionState.UNAVAILABLE and not _is_unloaded(one))
        return self._failures | {one.name for one in rows}

    def unfinished(self) -> list[ModelVersion]:
        """Those of which an instance may still have a process."""
        return [one for one in self if not one.gone()]

    def select(self, model: str, version: int) -> list[ModelVersion]:
        """The READY versions that statistics are asked of. Raises InvalidArgument."""
        if not model:
            return self.serving()
        try:
            self.find(model, -1)
        except ServingError:
            raise InvalidArgument(f"requested model '{model}' is not available") from None
        model = self.meant(model)
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
        """A model that the repositories hold no longer is left out once it is unloaded."""
        rows = []
        for name in sorted({*self._names, *self._models}):
            versions = self._models.get(name)
            if self._names_are_complete and name not in self._names and all(map(_is_unloaded, self.rows(name))):
                continue
            reason = self._names.get(name, "")
            if reason or not versions:  # it may serve all the same
                if ready or name in self._without_versions:
                    continue
                rows.append(
                    IndexEntry(self.name_of(name), -1, VersionState.UNAVAILABLE.value if reason else "", reason)
                )
                continue
            for number, one in sorted(versions.items()) if versions else ():
                if not ready or one.state is VersionState.READY:
                    rows.append(IndexEntry(self.name_of(name), number, one.state.value, one.reason))
        return rows

    def check(self) -> None:
        for one in self:
            one.check()
        for one in self._rows():
            assert one not in self._behind
        assert all(one.state is not VersionState.READY for one in self._behind)
        for rows in self._models.values():
            serving = {one.generation for one in rows.values() if one.state is VersionState.READY}
            assert len(serving) <= 1, "two generations of a model serve"


def _as_it_should_be(row: ModelVersion) -> bool:
    return row.state in (VersionState.READY, VersionState.UNLOADING) or _is_unloaded(row)


def _is_wanted(row: ModelVersion) -> bool:
    """Nobody has had it unloaded."""
    return row.state is not VersionState.UNLOADING and not _is_unloaded(row)


def _is_unloaded(row: ModelVersion) -> bool:
    return row.state is VersionState.UNAVAILABLE and row.reason == UNLOADED
