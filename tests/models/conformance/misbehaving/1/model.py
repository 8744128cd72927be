"""Does what ACTION names: every malformed return, every error, and outputs that differ from the configuration."""

import sys

import numpy as np
import triton_python_backend_utils as pb_utils

FINE = np.array([1, 2], dtype=np.float32)


def response(*outputs):
    tensors = []
    for name, value in outputs:  # no comprehension: before Python 3.12 it is a frame of its own in tracebacks
        tensors.append(pb_utils.Tensor(name, value))
    return pb_utils.InferenceResponse(tensors)


def objects(*elements):
    array = np.empty(len(elements), dtype=np.object_)
    array[:] = elements
    return array


def raise_value_error():
    raise ValueError("boom")


def raise_model_exception():
    raise pb_utils.TritonModelException("as the model says")


def raise_without_text():
    raise RuntimeError


def raise_unicode():
    raise RuntimeError("größer \u2603 \"quoted\"\nsecond line")


def raise_keyboard_interrupt():
    raise KeyboardInterrupt


def raise_deeper():
    def inner():
        return {}["missing"]

    return inner()


def bad_dtype():
    return [response(("OUT", np.array([1j])))]


def error_of(code):
    return lambda: [
        pb_utils.InferenceResponse(
            output_tensors=[], error=pb_utils.TritonError(f"told: {code}", getattr(pb_utils.TritonError, code))
        )
    ]


ACTIONS = {
    "fine": lambda: [response(("OUT", FINE), ("OTHER", FINE))],
    # malformed returns
    "tuple": lambda: (response(("OUT", FINE)),),
    "int": lambda: 7,
    "array": lambda: FINE,
    "generator": lambda: (r for r in [response(("OUT", FINE))]),
    "dict": lambda: {"OUT": FINE},
    "one_response": lambda: response(("OUT", FINE)),
    "too_many": lambda: [response(("OUT", FINE)), response(("OUT", FINE))],
    "too_few": lambda: [],
    "list_of_int": lambda: [7],
    "list_of_str": lambda: ["text"],
    "list_of_tensor": lambda: [pb_utils.Tensor("OUT", FINE)],
    "list_subclass": lambda: type("Answers", (list,), {})([response(("OUT", FINE))]),
    # exceptions
    "value_error": raise_value_error,
    "model_exception": raise_model_exception,
    "without_text": raise_without_text,
    "unicode": raise_unicode,
    "keyboard_interrupt": raise_keyboard_interrupt,
    "deeper": raise_deeper,
    "bad_dtype": bad_dtype,
    "empty_name": lambda: [response(("", FINE))],
    "exit": lambda: sys.exit(3),
    # errors returned
    "error": lambda: [pb_utils.InferenceResponse(output_tensors=[], error=pb_utils.TritonError("plain"))],
    "error_empty": lambda: [pb_utils.InferenceResponse(error=pb_utils.TritonError(""))],
    "error_with_outputs": lambda: [
        pb_utils.InferenceResponse([pb_utils.Tensor("OUT", FINE)], pb_utils.TritonError("outputs are ignored"))
    ],
    # outputs that differ from the configuration
    "other_datatype": lambda: [response(("OUT", np.array([1, 2], dtype=np.int64)))],
    "other_shape": lambda: [response(("OUT", np.arange(6, dtype=np.float32).reshape(2, 3)))],
    "half": lambda: [response(("OUT", np.array([0.5, -2], dtype=np.float16)))],
    "scalar": lambda: [response(("OUT", np.array(2.5, dtype=np.float32)))],
    "zero_size": lambda: [response(("OUT", np.empty((0, 3), dtype=np.float32)))],
    "no_outputs": lambda: [response()],
    "one_of_two": lambda: [response(("OTHER", FINE))],
    "reverse_order": lambda: [response(("OTHER", FINE), ("OUT", FINE + 1))],
    "unknown_output": lambda: [response(("OUT", FINE), ("STRANGER", FINE))],
    "twice": lambda: [response(("OUT", FINE), ("OUT", FINE + 1))],
    "transposed": lambda: [response(("OUT", np.arange(6, dtype=np.float32).reshape(2, 3).T))],
    "strided": lambda: [response(("OUT", np.arange(6, dtype=np.float32)[::2]))],
    "negative_stride": lambda: [response(("OUT", np.arange(3, dtype=np.float32)[::-1]))],
    # text
    "objects": lambda: [response(("OUT", objects(b"by\0tes", "strüng", 3, None, 1.5, b"")))],
    "fixed_width": lambda: [response(("OUT", np.array([b"ab", b"c\0"], dtype="S3")))],
    "text_scalar": lambda: [response(("OUT", np.array("lone", dtype=np.object_)))],
    "text_matrix": lambda: [response(("OUT", np.array([["a", "b"], ["c", "d"]], dtype=np.object_)))],
    "not_utf8": lambda: [response(("OUT", objects(b"\xff\xfe")))],
    "control": lambda: [response(("OUT", objects('\x00\x01\t\n\r\x1f"\\/\x7f\u2028')))],
    "no_text": lambda: [response(("OUT", np.empty((0,), dtype=np.object_)))],
    # numbers
    "float_forms": lambda: [
        response(
            ("OUT", np.array([0.1, 1e21, 1e-7, -0.0, 3e10, 1e20, 123456.789, 1e-5, np.nan, np.inf, -np.inf], np.float32))
        )
    ],
    "double_forms": lambda: [
        response(("OUT", np.array([0.1, 1e21, 1e-7, -0.0, 5e-324, 1.7976931348623157e308, 1e16, 123456789012345680.0])))
    ],
    "unsigned_limits": lambda: [response(("OUT", np.array([0, 2**64 - 1], dtype=np.uint64)))],
    "signed_limits": lambda: [response(("OUT", np.array([-(2**63), 2**63 - 1], dtype=np.int64)))],
    "booleans": lambda: [response(("OUT", np.array([True, False])))],
}
for code in "UNKNOWN INTERNAL NOT_FOUND INVALID_ARG UNAVAILABLE UNSUPPORTED ALREADY_EXISTS CANCELLED".split():
    ACTIONS["error_" + code.lower()] = error_of(code)


class TritonPythonModel:
    def execute(self, requests):
        action = pb_utils.get_input_tensor_by_name(requests[0], "ACTION").as_numpy()[0].decode()
        return ACTIONS[action]()
