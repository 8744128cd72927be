"""What a gateway knows of the models of a broker in another process: the rows that it was told. Pure.

Lookups answer as those of the broker's registry do, with the same errors.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from protocol.errors import InvalidArgument, NotFound, ProtocolError, ServingError, Unavailable, error_of
from protocol.model_lookup import no_version_ready, unknown_model, unknown_version, version_not_ready
from protocol.services import Row
from protocol.signature import ENSEMBLE_PLATFORM, Signature

READY, LOADING = "READY", "LOADING"


class ModelCatalogue:
    """Invariant: whatever is READY has a signature. A row of version -1 is of a model that is known but has none, or
    of a name that means none."""

    __slots__ = ("_models", "has_namespaces")

    def __init__(self) -> None:
        self.has_namespaces = False
        self._models: dict[str, dict[int, Row]] = {}

    def replace(self, models: Mapping[str, Iterable[Row]]) -> None:
        """These are all that there are. Raises ProtocolError, and then nothing has changed."""
        fresh = ModelCatalogue()
        fresh.update(models)
        self._models = fresh._models

    def update(self, models: Mapping[str, Iterable[Row]]) -> None:
        """These have changed; one without rows is not known any more. Raises ProtocolError, and then nothing has."""
        changed = {model: {row.version: row for row in rows} for model, rows in models.items()}
        for model, rows in changed.items():
            if any(row.state == READY and row.signature is None for row in rows.values()):
                raise ProtocolError(f"model '{model}' is READY without a signature")
        for model, rows in changed.items():
            if rows:
                self._models[model] = rows
            else:
                self._models.pop(model, None)

    def find(self, model: str, version: int) -> Row:
        """The READY version that a request means; -1 is the highest. Raises NotFound, Unavailable or, for a name in
        namespaces, InvalidArgument."""
        rows = self._models.get(model)
        if not rows or rows.keys() == {-1}:
            raise self._unknown(model)
        if version < 0:
            ready = [number for number, row in rows.items() if row.state == READY]
            if not ready:
                error = no_version_ready(model)
                is_coming = any(row.state == LOADING for row in rows.values())
                raise Unavailable(str(error)) if is_coming else error  # the stub hosts may be about to join again
            return rows[max(ready)]
        found = rows.get(version)
        if found is None:
            raise unknown_version(model, version)
        if found.state != READY:
            raise version_not_ready(model, version)
        return found

    def _unknown(self, model: str) -> ServingError:
        error = self._error(model)
        if error is not None:
            return error
        unknown = unknown_model(model)
        return InvalidArgument(str(unknown)) if self.has_namespaces else unknown

    def _error(self, model: str) -> ServingError | None:
        row = self._models.get(model, {}).get(-1)
        return None if row is None or row.error is None else error_of(*row.error)

    def signature(self, model: str, version: int) -> Signature:
        """Raises NotFound or Unavailable."""
        signature = self.find(model, version).signature
        assert signature is not None  # READY versions have one
        return signature

    def versions(self, model: str) -> list[int]:
        """The READY ones, ascending. Raises NotFound."""
        self.find(model, -1)
        return sorted(number for number, row in self._models[model].items() if row.state == READY)

    def may_be_ready(self, model: str, version: int) -> bool:
        """Whether its instances are worth asking. Raises NotFound for what was never known."""
        try:
            self.find(model, version)
        except Unavailable:
            return False
        except NotFound:
            if version < 0 and model in self._models and self._error(model) is None:
                return False
            raise
        return True

    def is_ensemble(self, model: str, version: int) -> bool:
        row = self._models.get(model, {}).get(version)
        return row is not None and row.signature is not None and row.signature.platform == ENSEMBLE_PLATFORM

    def shares_memory(self, model: str, version: int) -> bool:
        """Whether tensors for it may go by handle. False for what is not there (any more): frames are always right."""
        rows = self._models.get(model)
        row = rows.get(version) if rows is not None else None
        return row is not None and row.shared

    def check(self) -> None:
        """Raises AssertionError if the invariant is broken."""
        for rows in self._models.values():
            assert rows
            assert all(row.signature is not None for row in rows.values() if row.state == READY)
            assert all(number == row.version for number, row in rows.items())
