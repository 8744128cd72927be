"""Ensembles that are loaded: which wait for their models, which can be put together, which would wait for ever."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from broker.config_steps import complete, make_plan, step_models
from broker.ensemble import Part, Plan
from broker.load_lines import LoadLine
from broker.model import UNLOADED, Generation, VersionSource, VersionState
from broker.registry import Registry
from protocol.errors import InvalidArgument, ServingError
from protocol.signature import Signature


def put_together(sources: list[VersionSource], plans: list[Plan], now: int) -> Generation:
    generation = Generation(sources, now)
    for version, plan in zip(generation.versions, plans, strict=True):
        version.plan = plan
        version.config = complete(version.config, plan)
    return generation


def ready(lines: Mapping[str, LoadLine]) -> list[tuple[LoadLine, InvalidArgument | None]]:
    """Ensembles whose models are not being loaded any more, and those with the error that wait for themselves."""
    waiting = [line for line in lines.values() if line.sources]
    found = [(line, _circle(line, lines)) for line in waiting]
    return [(line, error) for line, error in found if error is not None or not line.models & lines.keys()]


def _circle(line: LoadLine, lines: Mapping[str, LoadLine]) -> InvalidArgument | None:
    """Whether an ensemble has itself among its models, or theirs."""
    reached: set[str] = set()
    ahead = [line.model]
    while ahead:
        model = ahead.pop()
        models = lines[model].models if model in lines else set()
        if line.model in models:
            return InvalidArgument(
                f"circular dependency between ensembles: {line.model} -> ... -> {model} -> {line.model}"
            )
        ahead += sorted(models - reached)
        reached |= models
    return None


def only_for(ensemble: str, serving: Mapping[str, Generation], by_name: Collection[str]) -> list[str]:
    """Its models, and theirs, that serve for it alone: nobody has asked for them by name."""
    found: list[str] = []
    ahead = [ensemble]
    while ahead:
        generation = serving.get(ahead.pop())
        for model in sorted(models_of(generation) if generation is not None else ()):
            users = {name for name, one in serving.items() if model in models_of(one)}
            if model not in found and model not in by_name and users <= {ensemble, *found}:
                found.append(model)
                ahead.append(model)
    return found


def sources_of(generation: Generation) -> list[VersionSource]:
    return [version.source for version in generation.versions]


def models_of(generation: Generation) -> set[str]:
    """Of an ensemble."""
    return {model for one in generation.versions if one.plan is not None for model in one.plan.models}


def plan_of(source: VersionSource, registry: Registry, refused: Mapping[str, ServingError]) -> Plan:
    """``refused`` are the ensembles that were found wrong. Raises InvalidArgument."""
    ensemble, steps = source.model, []
    unknown = set()
    for name, version in step_models(source.config):
        model = registry.part(source.namespace, name)
        if model is None or not (registry.knows(model) or model in refused):
            unknown.add(name)
        else:
            steps.append((model, version))
    if unknown:
        raise InvalidArgument(
            f"ensemble {ensemble} contains models that are not available or ambiguous: {', '.join(sorted(unknown))}"
        )
    parts = []
    for model, version in steps:
        if model in refused:
            raise InvalidArgument(
                f"ensemble '{ensemble}' depends on '{model}' which is not valid. Model '{model}' failed with error: "
                f"{refused[model]}"
            )
        try:
            parts.append(_part(registry.signature(model, version)))
        except ServingError:
            raise _missing(ensemble, model, version, registry) from None
    return make_plan(source.config, parts, [model for model, _ in steps])


def _missing(ensemble: str, model: str, version: int, registry: Registry) -> InvalidArgument:
    where = f"ensemble '{ensemble}' depends on '{model}'"
    rows = registry.rows(model)
    if version >= 0 and any(row.state is VersionState.READY for row in rows):
        return InvalidArgument(f"{where} whose required version {version} is not loaded.")
    failed = [row for row in rows if row.state is VersionState.UNAVAILABLE and row.reason != UNLOADED]
    clauses = "".join(f"version {row.version} is at {row.state.value} state: {row.reason};" for row in failed)
    why = f". Model '{model}' loading failed with error: {clauses}" if failed else ""
    return InvalidArgument(f"{where} which has no loaded version{why}")


def _part(one: Signature) -> Part:
    return Part(one.max_batch_size, one.decoupled, one.inputs, one.outputs, one.labels)
