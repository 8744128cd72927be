"""What an ONNX graph says of its inputs and outputs, and how that and a model's configuration become one.

Pure: a configuration is the dictionary behind ``pb_utils.ModelConfig``. ValueError has the client's text.
"""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Tuple

Config = Dict[str, Any]


class GraphTensor(NamedTuple):
    """``dims`` has the batch dimension, if there is one; -1 is variable. () is a scalar, or a rank that is not known.
    ``optional``: an input that is an initializer too."""

    name: str
    data_type: str  # as in a configuration: "TYPE_FP32"
    dims: Tuple[int, ...]
    optional: bool = False


class Graph(NamedTuple):
    inputs: List[GraphTensor]
    outputs: List[GraphTensor]

    @property
    def batches(self) -> bool:
        """Every tensor has a first dimension that is variable."""
        return all(tensor.dims[:1] == (-1,) for tensor in [*self.inputs, *self.outputs] if not tensor.optional)


# --- completion -------------------------------------------------------------------------------------------------


def is_complete(config: Config) -> bool:
    """Inputs and outputs are given, each with its type and dims."""
    given = (config.get("input", []), config.get("output", []))
    return all(given) and all(_lacks(entry) == [] for entries in given for entry in entries)


def complete(config: Config, graph: Graph, default_max_batch_size: int) -> None:
    """Fill in what is missing. Raises ValueError if the configuration batches and the graph cannot."""
    if graph.batches:
        config["max_batch_size"] = config.get("max_batch_size", 0) or max(0, default_max_batch_size)
        if config["max_batch_size"] > 1 and "sequence_batching" not in config:
            config.setdefault("dynamic_batching", {})
    elif config.get("max_batch_size", 0):
        raise ValueError(
            "autofill failed for model '{}': model does not support batching while non-zero max_batch_size is "
            "specified".format(config["name"])
        )
    batching = config.get("max_batch_size", 0) > 0
    for kind, tensors in (("input", graph.inputs), ("output", graph.outputs)):
        known = {tensor.name: _entry(tensor, batching) for tensor in tensors if _fits(tensor, batching)}
        if not config.get(kind):
            config[kind] = list(known.values())
        for entry in config[kind]:
            entry.update({key: known[entry["name"]][key] for key in _lacks(entry) if entry["name"] in known})


def _lacks(entry: Config) -> List[str]:
    lacks = [] if entry.get("data_type", "TYPE_INVALID") != "TYPE_INVALID" else ["data_type"]
    return lacks if entry.get("dims") else [*lacks, "dims"]


def _fits(tensor: GraphTensor, batching: bool) -> bool:
    """An initializer of fixed shape cannot be said in the configuration of a model that batches."""
    return not batching or not tensor.optional or tensor.dims[:1] == (-1,)


def _entry(tensor: GraphTensor, batching: bool) -> Config:
    """A scalar has to be [1]; where there are batches of them a reshape says so, elsewhere none is allowed."""
    dims = list(tensor.dims[1:] if batching else tensor.dims)
    entry: Config = {"name": tensor.name, "data_type": tensor.data_type, "dims": dims or [1]}
    if batching and not dims:
        entry["reshape"] = {"shape": []}
    if tensor.optional:
        entry["optional"] = True
    return entry


# --- checks -----------------------------------------------------------------------------------------------------


def check(config: Config, graph: Graph) -> None:
    """That the graph can do what the configuration says. Raises ValueError."""
    _check_input_names(config, graph.inputs)
    allowed = [tensor.name for tensor in graph.outputs]
    for entry in config.get("output", []):
        _check_name("output", entry["name"], allowed)
    for state in config.get("sequence_batching", {}).get("state", []):
        if state.get("output_name"):
            _check_name("output", state["output_name"], allowed)
    for kind, tensors in (("input", graph.inputs), ("output", graph.outputs)):
        known = {tensor.name: tensor for tensor in tensors}
        for entry in config.get(kind, []):
            _check_data_type(config["name"], kind, entry, known[entry["name"]])
            _check_dims(config, entry, known[entry["name"]])


def _check_input_names(config: Config, tensors: List[GraphTensor]) -> None:
    names = [entry["name"] for entry in config.get("input", [])] + list(_of_the_scheduler(config))
    required = [tensor.name for tensor in tensors if not tensor.optional]
    if not len(required) <= len(names) <= len(tensors):
        raise _wrong_number(config, len(names), len(required))
    for name in names:
        _check_name("input", name, [tensor.name for tensor in tensors])
    if not set(required) <= set(names):
        raise _wrong_number(config, len(names), len(required))


def _of_the_scheduler(config: Config) -> List[str]:
    """Inputs that do not come from clients."""
    sequence = config.get("sequence_batching", {})
    return [
        *(control["name"] for control in sequence.get("control_input", [])),
        *(state["input_name"] for state in sequence.get("state", [])),
        *(name for batch in config.get("batch_input", []) for name in batch.get("target_name", [])),
    ]


def _wrong_number(config: Config, configured: int, provided: int) -> ValueError:
    return ValueError(
        "unable to load model '{}', configuration expects {} inputs, model provides {}".format(
            config["name"], configured, provided
        )
    )


def _check_name(kind: str, name: str, allowed: List[str]) -> None:
    if name not in allowed:
        names = ", ".join(sorted(allowed))
        raise ValueError("unexpected inference {} '{}', allowed {}s are: {}".format(kind, name, kind, names))


def _check_data_type(model: str, kind: str, entry: Config, tensor: GraphTensor) -> None:
    if entry["data_type"] != tensor.data_type:
        raise ValueError(
            "unable to load model '{}', configuration expects datatype {} for {} '{}', model provides {}".format(
                model, entry["data_type"], kind, entry["name"], tensor.data_type
            )
        )


def _check_dims(config: Config, entry: Config, tensor: GraphTensor) -> None:
    if tensor.dims == () or entry.get("allow_ragged_batch"):
        return
    where = "model '{}', tensor '{}': ".format(config["name"], entry["name"])
    dims = entry["reshape"].get("shape", []) if "reshape" in entry else entry["dims"]
    batching = config.get("max_batch_size", 0) > 0
    expected, given = list(tensor.dims), [-1, *dims] if batching else list(dims)
    if batching and expected[0] != -1:
        raise ValueError(
            where + "for the model to support batching the shape should have at least 1 dimension and the first "
            "dimension must be -1; but shape expected by the model is " + _shape(expected)
        )
    if len(given) != len(expected):
        raise ValueError(where + _wrong_rank(expected, given, batching))
    if any(wanted not in (-1, dim) for wanted, dim in zip(expected, given)):
        text = "the model expects shape {} but the model configuration specifies shape {}"
        raise ValueError(where + text.format(_shape(expected), _shape(given)))


def _wrong_rank(expected: List[int], given: List[int], batching: bool) -> str:
    how = (
        "an initial batch dimension because max_batch_size > 0 followed by the explicit tensor shape, making complete "
        if batching
        else ""
    )
    return (
        "the model expects {} dimensions (shape {}) but the model configuration specifies {} dimensions ({}shape {})"
    ).format(len(expected), _shape(expected), len(given), how, _shape(given))


def _shape(dims: List[int]) -> str:
    return "[{}]".format(",".join(map(str, dims)))
