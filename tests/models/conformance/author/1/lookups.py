"""The functions of ``pb_utils``."""

import json

import numpy as np

TYPES = [
    "BOOL",
    "UINT8",
    "UINT16",
    "UINT32",
    "UINT64",
    "INT8",
    "INT16",
    "INT32",
    "INT64",
    "FP16",
    "FP32",
    "FP64",
    "STRING",
]
# What the module itself imports, and what ours has besides: an array of all inputs of a batch.
NO_MATTER = ("np", "json", "struct", "sys", "os", "annotations", "input_batch_as_numpy")
CONFIG = {"input": [{"name": "A"}, {"name": "B", "dims": [1]}], "output": [{"name": "C"}]}


def kind(value):
    return None if value is None else np.dtype(value).name


def serialized(*elements, dtype=np.object_):
    def probe(pb, _):
        result = pb.serialize_byte_tensor(np.array(elements, dtype=dtype))
        return [type(result).__name__, result.hex()]

    return probe


def deserialized(data):
    def probe(pb, _):
        result = pb.deserialize_bytes_tensor(data)
        return [str(result.dtype), list(result.shape), [element.hex() for element in result]]

    return probe


def found(pb, received):
    tensor = pb.get_input_tensor_by_name(received, "PROBE")
    response = pb.InferenceResponse([pb.Tensor("OUT", np.zeros(1))])
    return [
        tensor.name(),
        pb.get_input_tensor_by_name(received, "probe"),
        pb.get_output_tensor_by_name(response, "OUT").name(),
        pb.get_output_tensor_by_name(response, "X"),
    ]


def flags(pb, _):
    names = [
        "REQUEST_FLAG_SEQUENCE_START",
        "REQUEST_FLAG_SEQUENCE_END",
        "RESPONSE_COMPLETE_FINAL",
        "REQUEST_RELEASE_ALL",
    ]
    return [getattr(pb, f"TRITONSERVER_{name}") for name in [*names, "REQUEST_RELEASE_RESCHEDULE"]]


PROBES = {
    "types of NumPy by configuration": lambda pb, _: [
        kind(pb.triton_string_to_numpy(f"TYPE_{name}")) for name in TYPES
    ],
    "type of NumPy of BF16": lambda pb, _: kind(pb.triton_string_to_numpy("TYPE_BF16")),
    "type of NumPy of a strange name": lambda pb, _: kind(pb.triton_string_to_numpy("FP32")),
    "types of NumPy by number": lambda pb, _: [kind(pb.triton_to_numpy_type(number)) for number in range(16)],
    "numbers of types of NumPy": lambda pb, _: [
        pb.numpy_to_triton_type(one)
        for one in (np.bool_, np.uint8, np.int64, np.float16, np.float32, np.float64, np.object_, np.bytes_)
    ],
    "number of a dtype": lambda pb, _: pb.numpy_to_triton_type(np.dtype("float32")),
    "number of no type": lambda pb, _: pb.numpy_to_triton_type(np.complex64),
    "table of types": lambda pb, _: sorted(pb.TRITON_STRING_TO_NUMPY),
    "tensors by name": found,
    "configured tensors by name": lambda pb, _: [
        pb.get_input_config_by_name(CONFIG, "B"),
        pb.get_input_config_by_name(CONFIG, "C"),
        pb.get_output_config_by_name(CONFIG, "C"),
        pb.get_output_config_by_name(CONFIG, "A"),
        pb.get_input_config_by_name({}, "A"),
    ],
    "decoupled by configuration": lambda pb, _: [
        pb.using_decoupled_model_transaction_policy(one)
        for one in (
            {},
            {"model_transaction_policy": {"decoupled": True}},
            {"model_transaction_policy": {"decoupled": False}},
        )
    ],
    "flags": flags,
    "text serialized": serialized(b"ab", "grüße", 3, None, b""),
    "text of fixed width serialized": serialized(b"ab", b"c", dtype="S3"),
    "text of two dimensions serialized": serialized([b"a", b"b"], [b"c", b"d"]),
    "nothing serialized": lambda pb, _: [
        type(pb.serialize_byte_tensor(np.empty(0, dtype=np.object_))).__name__,
        len(pb.serialize_byte_tensor(np.empty(0, dtype=np.object_))),
    ],
    "numbers serialized": lambda pb, _: pb.serialize_byte_tensor(np.zeros(2)),
    "text deserialized": deserialized(b"\x02\0\0\0ab\0\0\0\0\x01\0\0\0c"),
    "nothing deserialized": deserialized(b""),
    "model directory": lambda pb, _: pb.get_model_dir(),
    "names": lambda pb, _: sorted(name for name in dir(pb) if name[0] != "_" and name not in NO_MATTER),
    "names of the C++ module": lambda pb, _: [
        hasattr(__import__("c_python_backend_utils"), name)
        for name in [
            "InferenceTrace",
            "InferenceResponseSender",
            "ResponseIterator",
            "Metric",
            "MetricKind",
            "MemoryType",
        ]
    ],
    "memory": lambda pb, _: [repr(pb.TRITONSERVER_MEMORY_CPU), repr(pb.TRITONSERVER_MEMORY_GPU)],
    "module of a class": lambda pb, _: [pb.Tensor.__module__, pb.Tensor.__name__, pb.InferenceRequest.__module__],
    "request as JSON": lambda pb, received: json.loads(received.parameters()),
}
