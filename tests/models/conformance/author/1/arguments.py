"""What the classes of ``pb_utils`` take as arguments, and what they say of what they do not take."""

import numpy as np

FLOATS = np.array([1, 2], dtype=np.float32)


def request(pb, **more):
    """As little as a request can be made of, but for ``more``."""
    return pb.InferenceRequest(**{"inputs": [], "requested_output_names": [], "model_name": "x", **more})


def tensor(pb, array=FLOATS, name="T"):
    return pb.Tensor(name, array)


def made(method, **more):
    return lambda pb, _: getattr(request(pb, **more), method)()


def is_made(**more):
    """That a request can be made of it."""
    return lambda pb, _: type(request(pb, **more)).__name__


def facts(array):
    def probe(pb, _):
        made = tensor(pb, array)
        return [made.shape(), str(made.as_numpy().dtype), made.is_cpu(), made.name()]

    return probe


def aliases(pb, _):
    array = FLOATS.copy()
    made = tensor(pb, array)
    array[0] = 7
    return [made.as_numpy() is array, made.as_numpy().tolist()]


def round_trip(array):
    def probe(pb, _):
        again = pb.Tensor.from_dlpack("D", tensor(pb, array).to_dlpack())
        return [again.shape(), str(again.as_numpy().dtype), again.as_numpy().tolist()]

    return probe


def twice(pb, _):
    capsule = tensor(pb).to_dlpack()
    pb.Tensor.from_dlpack("D", capsule)
    return pb.Tensor.from_dlpack("D", capsule).shape()


def strided_matrix(pb, _):
    class Strided:
        def __dlpack__(self, stream=None):
            return np.zeros((4, 4), dtype=np.float32)[:, ::2].__dlpack__()

        def __dlpack_device__(self):
            return (1, 0)

    return pb.Tensor.from_dlpack("D", Strided()).shape()


def has_no_room(make):
    """For attributes of the model's own; in the text, the class has another name."""

    def probe(pb, _):
        try:
            make(pb).colour = "red"
        except AttributeError:
            return "AttributeError"

    return probe


def changed_flags(pb, _):
    made = request(pb, flags=1)
    made.set_flags(3)
    return [made.flags(), type(made.flags()).__name__]


def correlation_ids(pb, _):
    return [request(pb, correlation_id=value).correlation_id() for value in (0, True, 2**64 - 1, "", "sequence-1")]


def senders(pb, received):
    mine = request(pb)
    return [mine.get_response_sender() is not None, received.get_response_sender() is received.get_response_sender()]


def send(*arguments, **more):
    """By the sender of a request that the model has made itself."""
    return lambda pb, _: request(pb).get_response_sender().send(*arguments, **more)


def send_response(**more):
    return lambda pb, _: request(pb).get_response_sender().send(pb.InferenceResponse([]), **more)


def response_facts(pb, _):
    fine, failed = pb.InferenceResponse([tensor(pb)]), pb.InferenceResponse(error=pb.TritonError("told"))
    return [
        [fine.has_error(), fine.error() is None, [one.name() for one in fine.output_tensors()]],
        [failed.has_error(), failed.error().message(), repr(failed.error().code()), failed.output_tensors()],
        [pb.InferenceResponse().output_tensors(), pb.InferenceResponse((tensor(pb),)).output_tensors()[0].name()],
    ]


def error_codes(pb, _):
    names = [
        "UNKNOWN",
        "INTERNAL",
        "NOT_FOUND",
        "INVALID_ARG",
        "UNAVAILABLE",
        "UNSUPPORTED",
        "ALREADY_EXISTS",
        "CANCELLED",
    ]
    codes = [getattr(pb.TritonError, name) for name in names]
    return [[repr(code), int(code), code == int(code), hash(code) == hash(int(code)), code.name] for code in codes]


def error_facts(pb, _):
    plain, told = pb.TritonError("plain"), pb.TritonError(message="told", code=pb.TritonError.NOT_FOUND)
    return [
        plain.message(),
        repr(plain.code()),
        told.message(),
        told.code() == 2,
        told.code() == pb.TritonError.NOT_FOUND,
    ]


REQUESTS = {
    "a request": made("request_id"),
    "request id": made("request_id", request_id="mine"),
    "request id of bytes": made("request_id", request_id=b"mine"),
    "request id None": is_made(request_id=None),
    "request id a number": is_made(request_id=3),
    "correlation ids": correlation_ids,
    "correlation id None": is_made(correlation_id=None),
    "correlation id negative": is_made(correlation_id=-1),
    "correlation id beyond 64 bits": is_made(correlation_id=2**64),
    "correlation id a float": is_made(correlation_id=1.5),
    "correlation id of NumPy": is_made(correlation_id=np.int64(3)),
    "correlation id of bytes": is_made(correlation_id=b"x"),
    "inputs": lambda pb, _: [one.name() for one in request(pb, inputs=[tensor(pb)]).inputs()],
    "inputs a tuple": lambda pb, _: [one.name() for one in request(pb, inputs=(tensor(pb),)).inputs()],
    "inputs None": is_made(inputs=None),
    "inputs of None": is_made(inputs=[None]),
    "inputs of None, with names": is_made(inputs=[None], request_id="r", model_name="m"),
    "inputs of text": is_made(inputs=["x"]),
    "inputs text": is_made(inputs="x"),
    "inputs one tensor": lambda pb, _: request(pb, inputs=tensor(pb)) and None,
    "inputs a set": lambda pb, _: request(pb, inputs={tensor(pb)}) and None,
    "outputs": lambda pb, _: sorted(request(pb, requested_output_names=["B", "A", "B"]).requested_output_names()),
    "outputs are a set": lambda pb, _: (
        type(request(pb, requested_output_names=["B"]).requested_output_names()).__name__
    ),
    "outputs a tuple of bytes": lambda pb, _: list(
        request(pb, requested_output_names=(b"B",)).requested_output_names()
    ),
    "outputs None": is_made(requested_output_names=None),
    "outputs of None": is_made(requested_output_names=[None]),
    "outputs text": is_made(requested_output_names="OUT"),
    "outputs a set": is_made(requested_output_names={"OUT"}),
    "outputs of an empty name": is_made(requested_output_names=[""]),
    "outputs of an empty name, with names": is_made(requested_output_names=["A", ""], request_id="r", model_name="m"),
    "model name of bytes": is_made(model_name=b"add_sub"),
    "model name of NumPy": is_made(model_name=np.str_("add_sub")),
    "model name None": is_made(model_name=None),
    "model name empty": is_made(model_name=""),
    "model version of NumPy": is_made(model_version=np.int32(1)),
    "model version text": is_made(model_version="1"),
    "model version a float": is_made(model_version=1.0),
    "flags": made("flags", flags=3),
    "flags default": made("flags"),
    "flags None": is_made(flags=None),
    "flags negative": is_made(flags=-1),
    "flags a float": is_made(flags=1.0),
    "flags changed": changed_flags,
    "timeout": made("timeout", timeout=11000000000),
    "timeout default": made("timeout"),
    "timeout of NumPy": made("timeout", timeout=np.int64(5)),
    "timeout a float": is_made(timeout=1.5),
    "timeout negative": is_made(timeout=-1),
    "timeout None": is_made(timeout=None),
    "no inputs given": lambda pb, _: pb.InferenceRequest(requested_output_names=[], model_name="x") and None,
    "no outputs given": lambda pb, _: pb.InferenceRequest(inputs=[], model_name="x") and None,
    "no model name given": lambda pb, _: pb.InferenceRequest(inputs=[], requested_output_names=[]) and None,
    "unknown keyword": is_made(priority=1),
    "in order": lambda pb, _: pb.InferenceRequest("r", 5, [], ["A"], "m", 1, 2, 7).timeout(),
    "parameters default": made("parameters"),
    "parameters": made("parameters", parameters={"a": "x", "b": 3, "c": True}),
    "parameters of text": made("parameters", parameters={"grüße": 'quote "'}),
    "parameters None": made("parameters", parameters=None),
    "parameters empty": made("parameters", parameters={}),
    "parameters a list": is_made(parameters=[1]),
    "parameters text": is_made(parameters="{}"),
    "parameters with a number as key": is_made(parameters={1: "x"}),
    "parameters with bytes as key": is_made(parameters={b"a": "x"}),
    "parameters with a float": is_made(parameters={"a": 1.5}),
    "parameters with None": is_made(parameters={"a": None}),
    "parameters with a list": is_made(parameters={"a": [1]}),
    "parameters with an object": is_made(parameters={"a": {}}),
    "preferred memory": lambda pb, _: is_made(preferred_memory=pb.PreferredMemory(pb.TRITONSERVER_MEMORY_CPU))(pb, _),
    "preferred memory, with device": lambda pb, _: type(pb.PreferredMemory(pb.TRITONSERVER_MEMORY_GPU, 0)).__name__,
    "preferred memory by keyword": lambda pb, _: (
        type(pb.PreferredMemory(preferred_memory_type=pb.TRITONSERVER_MEMORY_CPU, preferred_device_id=0)).__name__
    ),
    "preferred memory of a number": lambda pb, _: pb.PreferredMemory(1),
    "preferred memory of nothing": lambda pb, _: pb.PreferredMemory(),
    "preferred memory a number": is_made(preferred_memory=1),
    "trace of the request": lambda pb, received: is_made(trace=received.trace())(pb, received),
    "trace's context": lambda pb, received: received.trace().get_context(),
    "trace a number": is_made(trace=1),
    "no attribute of its own": has_no_room(request),
    "public names": lambda pb, _: sorted(name for name in dir(pb.InferenceRequest) if name[0] != "_"),
    "set_release_flags by keyword": lambda pb, received: received.set_release_flags(flags=1),
    "set_release_flags None": lambda pb, received: received.set_release_flags(None),
    "set_release_flags all": lambda pb, received: received.set_release_flags(pb.TRITONSERVER_REQUEST_RELEASE_ALL),
    "not cancelled": lambda pb, received: received.is_cancelled(),
}
SENDERS = {
    "senders": senders,
    "send to oneself": send_response(),
    "send to oneself, final": send_response(flags=1),
    "send to oneself the flag alone": send(flags=1),
    "send nothing": send(),
    "send nothing, by flags": send(None, 0),
    "send another flag": send_response(flags=2),
    "send two flags": send_response(flags=3),
    "send another flag alone": send(flags=2),
    "send text": send("x"),
    "send with a text as flag": send_response(flags="1"),
    "send with None as flag": send_response(flags=None),
    "send by keywords": lambda pb, _: (
        request(pb)
        .get_response_sender()
        .send(response=pb.InferenceResponse([]), flags=pb.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
    ),
    "sender's public names": lambda pb, received: sorted(
        name for name in dir(received.get_response_sender()) if name[0] != "_"
    ),
    "sender not cancelled": lambda pb, received: received.get_response_sender().is_cancelled(),
}
RESPONSES = {
    "responses": response_facts,
    "output tensors None": lambda pb, _: pb.InferenceResponse(None),
    "output tensors of None": lambda pb, _: pb.InferenceResponse([None]),
    "output tensors of a tensor and None": lambda pb, _: pb.InferenceResponse([tensor(pb), None]),
    "output tensors of arrays": lambda pb, _: pb.InferenceResponse([FLOATS]),
    "output tensors one tensor": lambda pb, _: pb.InferenceResponse(tensor(pb)),
    "error a text": lambda pb, _: pb.InferenceResponse([], "failed"),
    "error an exception": lambda pb, _: pb.InferenceResponse(error=ValueError("x")),
    "error None": lambda pb, _: pb.InferenceResponse([], None).has_error(),
    "outputs and error": lambda pb, _: pb.InferenceResponse([tensor(pb)], pb.TritonError("x")).has_error(),
}
ERRORS = {
    "errors": error_facts,
    "error codes": error_codes,
    "error without a message": lambda pb, _: pb.TritonError() and None,
    "error with the message None": lambda pb, _: pb.TritonError(None) and None,
    "error with a number as code": lambda pb, _: pb.TritonError("x", 1) and None,
    "error with a text as code": lambda pb, _: pb.TritonError("x", "INTERNAL") and None,
    "error with a message of bytes": lambda pb, _: pb.TritonError(b"bytes").message(),
    "exception": lambda pb, _: [issubclass(pb.TritonModelException, Exception), pb.TritonModelException.__name__],
}
LOGGER = {
    "log": lambda pb, _: pb.Logger.log("author"),
    "log with level": lambda pb, _: pb.Logger.log("author", pb.Logger.WARNING),
    "log by keywords": lambda pb, _: pb.Logger.log(message="author", level=pb.Logger.VERBOSE),
    "log by levels": lambda pb, _: [
        getattr(pb.Logger, name)("author") for name in ("log_info", "log_warn", "log_error", "log_verbose")
    ],
    "log None": lambda pb, _: pb.Logger.log(None),
    "log a number": lambda pb, _: pb.Logger.log(1),
    "log nothing": lambda pb, _: pb.Logger.log(),
    "log_info None": lambda pb, _: pb.Logger.log_info(None),
    "log_warn a number": lambda pb, _: pb.Logger.log_warn(1),
    "log_error None": lambda pb, _: pb.Logger.log_error(None),
    "log_verbose a number": lambda pb, _: pb.Logger.log_verbose(1),
    "log with the level None": lambda pb, _: pb.Logger.log("x", None),
    "log with a number as level": lambda pb, _: pb.Logger.log("x", 1),
    "log with a text as level": lambda pb, _: pb.Logger.log("x", "INFO"),
    "logger made": lambda pb, _: pb.Logger() and None,
}
TENSORS = {
    **{
        f"tensor of {kind}": facts(np.zeros((2, 3), dtype=kind))
        for kind in [
            "bool",
            "uint8",
            "uint16",
            "uint32",
            "uint64",
            "int8",
            "int16",
            "int32",
            "int64",
            "float16",
            "float32",
            "float64",
        ]
    },
    "tensor of text": facts(np.array(["a", b"b"], dtype=np.object_)),
    "tensor of fixed width": facts(np.array([b"ab", b"c"], dtype="S3")),
    "tensor of no dimension": facts(np.array(1.5)),
    "tensor of no element": facts(np.empty((0, 3), dtype=np.int8)),
    "tensor transposed": facts(np.arange(6).reshape(2, 3).T),
    "tensor strided": lambda pb, _: tensor(pb, np.arange(6)[::2]).as_numpy().tolist(),
    "tensor of a matrix": lambda pb, _: facts(np.matrix([[1, 2]]))(pb, _),
    "tensor aliases": aliases,
    "tensor of unicode": facts(np.array(["a"])),
    "tensor of complex": facts(np.array([1j])),
    "tensor of dates": facts(np.array(["2024-01-01"], dtype="M8[D]")),
    "tensor of a structure": facts(np.zeros(1, dtype=[("a", "i4")])),
    "tensor of long doubles": facts(np.zeros(1, dtype=np.longdouble)),
    "tensor of the other byte order": facts(np.zeros(1, dtype=">i4")),
    "tensor of a list": facts([1, 2]),
    "tensor of a number": facts(1.5),
    "tensor of a NumPy scalar": facts(np.float32(1)),
    "tensor of None": facts(None),
    "tensor with an empty name": lambda pb, _: tensor(pb, name=""),
    "tensor with an empty name, of None": lambda pb, _: pb.Tensor("", None),
    "tensor with the name None": lambda pb, _: tensor(pb, name=None),
    "tensor with a name of bytes": lambda pb, _: tensor(pb, name=b"bytes").name(),
    "tensor by keywords": lambda pb, _: pb.Tensor(name="T", numpy_array=FLOATS),
    "tensor of nothing": lambda pb, _: pb.Tensor(),
    "tensor with an attribute": has_no_room(tensor),
    "tensor equals itself alone": lambda pb, _: [tensor(pb) == tensor(pb), isinstance(hash(tensor(pb)), int)],
    "tensor is the array given": lambda pb, _: tensor(pb, FLOATS).as_numpy() is FLOATS,
    "tensor's public names": lambda pb, _: sorted(name for name in dir(pb.Tensor) if name[0] != "_"),
    "input is writable": lambda pb, received: received.inputs()[0].as_numpy().flags.writeable,
    "input is the same each time": lambda pb, received: [
        received.inputs()[0] is received.inputs()[0],
        received.inputs()[0].as_numpy() is received.inputs()[0].as_numpy(),
        received.inputs() is received.inputs(),
    ],
}
DLPACK = {
    **{
        f"dlpack of {kind}": round_trip(np.ones((2, 2), dtype=kind))
        for kind in [
            "bool",
            "uint8",
            "uint16",
            "uint32",
            "uint64",
            "int8",
            "int16",
            "int32",
            "int64",
            "float16",
            "float32",
            "float64",
        ]
    },
    "dlpack of no dimension": round_trip(np.array(1.5)),
    "dlpack device": lambda pb, _: list(tensor(pb).__dlpack_device__()),
    "dlpack for NumPy": lambda pb, _: np.from_dlpack(tensor(pb)).tolist(),
    "dlpack of text": lambda pb, received: received.inputs()[0].to_dlpack(),
    "dlpack of itself": lambda pb, _: pb.Tensor.from_dlpack("D", tensor(pb)).as_numpy().tolist(),
    "dlpack with an empty name": lambda pb, _: pb.Tensor.from_dlpack("", tensor(pb).to_dlpack()),
    "dlpack of None": lambda pb, _: pb.Tensor.from_dlpack("D", None),
    "dlpack of a list": lambda pb, _: pb.Tensor.from_dlpack("D", [1]),
    "dlpack with the name None": lambda pb, _: pb.Tensor.from_dlpack(None, tensor(pb).to_dlpack()),
    "dlpack by keyword": lambda pb, _: pb.Tensor.from_dlpack(name="D", tensor=tensor(pb).to_dlpack()),
    "dlpack of a strided matrix": strided_matrix,
}
PROBES = {**REQUESTS, **SENDERS, **RESPONSES, **ERRORS, **LOGGER, **TENSORS, **DLPACK}
