"""The gRPC service: (method, request bytes) to response bytes, or to a stream of them. No transport, no grpcio.

An engine calls ``infer`` for INFER, ``stream`` for STREAM, ``unary`` for the rest of ``methods``, and turns a
ServingError into a status with gateway/status.py. What it must do besides: cancel the inference or stream of a client
that is gone or past its deadline, and release a LargeMessage once it is sent, or will never be.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any
from weakref import WeakSet

from gateway.calls import Reply
from gateway.dataplane import DataPlane
from gateway.grpc_in_flight import SHUTTING_DOWN, InFlight
from gateway.grpc_message import Buffer, Message, message_of
from gateway.grpc_requests import decode_call, decode_parameters
from gateway.grpc_responses import encode_response
from gateway.grpc_stream import InferStream
from gateway.grpc_wire import ParsedRequest, model_at_the_start, parse_message, parse_request, varint
from gateway.header_forwarding import HeaderForwarding, metadata_of_client
from gateway.log_settings import FILE_IS_FIXED, FORMATS, SWITCHES, change, shown
from gateway.proto import service_pb2
from gateway.refusals import NO_REPOSITORY_NAME, SHM_DISABLED
from protocol.errors import InvalidArgument, NotFound, ServingError, Unavailable, Unsupported
from protocol.signature import IndexEntry
from protocol.statistics import BatchStatistics, Duration, InferStatistics, ModelStatistics, ResponseStatistics
from protocol.versions import parse_version

SERVICE = "/inference.GRPCInferenceService/"
INFER = SERVICE + "ModelInfer"
STREAM = SERVICE + "ModelStreamInfer"
HEALTH_CHECK = "/grpc.health.v1.Health/Check"

# grpc.health.v1.HealthCheckResponse{status = 1}: SERVING is 1, NOT_SERVING 2.
SERVING, NOT_SERVING = b"\x08\x01", b"\x08\x02"

Metadata = Sequence[tuple[str, "str | bytes"]]
Proto = Any  # protobuf's classes have no static types
Answer = Callable[["bytes | ServingError"], None]
InferAnswer = Callable[["Message | ServingError"], None]


class GrpcService:
    """``infer``, ``stream`` and ``drain`` belong to the loop; nothing here blocks."""

    def __init__(self, dataplane: DataPlane, forwarding: HeaderForwarding | None = None) -> None:
        self.dataplane = dataplane
        self._forwarding = forwarding
        self._in_flight = InFlight()
        self._streams: WeakSet[InferStream] = WeakSet()
        answers: dict[str, Callable[[Proto], Proto]] = {
            "ServerLive": self._server_live,
            "ServerMetadata": self._server_metadata,
            "ModelMetadata": self._model_metadata,
            "LogSettings": self._log_settings,
            "SystemSharedMemoryStatus": self._system_shared_memory_status,
            "SystemSharedMemoryRegister": self._shared_memory_disabled,
            "SystemSharedMemoryUnregister": self._shared_memory_disabled,
            "CudaSharedMemoryStatus": self._cuda_shared_memory_status,
            "CudaSharedMemoryRegister": self._shared_memory_disabled,
            "CudaSharedMemoryUnregister": self._shared_memory_disabled,
        }
        self._methods: dict[str, Callable[[bytes], bytes]] = {
            SERVICE + name: _answering(getattr(service_pb2, name + "Request"), answer)
            for name, answer in answers.items()
        }
        self._methods[SERVICE + "ModelConfig"] = self._model_config
        self._questions: dict[str, Callable[[bytes, Answer], None]] = {
            HEALTH_CHECK: self._health_check,
            SERVICE + "ServerReady": self._server_ready,
            SERVICE + "ModelReady": self._model_ready,
            SERVICE + "ModelStatistics": self._model_statistics,
            SERVICE + "RepositoryIndex": self._repository_index,
            SERVICE + "RepositoryModelLoad": self._repository_model_load,
            SERVICE + "RepositoryModelUnload": self._repository_model_unload,
        }

    @property
    def methods(self) -> frozenset[str]:
        """The paths of the unary methods but ModelInfer."""
        return frozenset(self._methods | self._questions)

    def unary(self, method: str, request: bytes, answer: Answer) -> None:
        """One of ``methods``. ``answer`` is called now or later, with an error if that comes to light only then.
        Raises ServingError."""
        question = self._questions.get(method)
        if question is not None:
            question(request, answer)
        else:
            answer(self._methods[method](request))

    # --- inference ------------------------------------------------------------------------------------------------

    def infer(self, request: Buffer, answer: InferAnswer, metadata: Metadata = ()) -> Callable[[], None]:
        """ModelInfer. ``answer`` is called once, later, unless the call that is returned has cancelled the request
        before. Raises ServingError. The bytes are not needed any more once this has returned."""
        self._in_flight.refuse_while_draining()
        parsed = parse_request(request)
        inference = _Inference(self.dataplane, self._in_flight, answer)
        try:
            inference.id = self._submit(parsed, metadata, inference)
        except ServingError as error:
            self.dataplane.refused(parsed.message.model_name, parsed.message.id, error)
            raise
        self._in_flight.started()
        return inference.cancel

    def refuse_large(self, begun: memoryview, nbytes: int) -> None:
        """Before the rest of a large ModelInfer is received; most begin with the name of the model. Raises
        ServingError."""
        model = model_at_the_start(begun)
        if model is None:
            return
        try:
            self.dataplane.refuse_large(model, -1, nbytes)
        except Unavailable as error:
            self.dataplane.refused(model, "", error)
            raise
        except ServingError:
            return  # what is wrong with it is told when it is there

    def _submit(self, parsed: ParsedRequest, metadata: Metadata, inference: _Inference) -> int:
        message = parsed.message
        signature = self.dataplane.signature(message.model_name, parse_version(message.model_version))
        if signature.decoupled:
            raise Unsupported("ModelInfer RPC doesn't support models with decoupled transaction policy")
        call = decode_call(parsed, signature, decode_parameters(message))
        if self._forwarding is not None:
            call.parameters = self._forwarding.added(call.parameters, metadata_of_client(metadata))
        return self.dataplane.infer(call, inference.on_reply)

    def stream(self, metadata: Metadata, on_ready: Callable[[], None]) -> InferStream:
        """A ModelStreamInfer call; ``on_ready`` as the stream has it."""
        fail_on_error = ("triton_grpc_error", "true") in metadata
        stream = InferStream(self.dataplane, self._in_flight, fail_on_error, on_ready)
        if self._forwarding is not None:
            stream.forwarded = partial(self._forwarding.added, headers=list(metadata_of_client(metadata)))
        self._streams.add(stream)
        return stream

    # --- life -----------------------------------------------------------------------------------------------------

    async def drain(self, timeout_s: float) -> bool:
        """Refuse new inferences, wait for those that run, then end the open streams. False: some still run."""
        all_finished = await self._in_flight.drain(timeout_s)
        for stream in list(self._streams):
            stream.close(Unavailable(SHUTTING_DOWN))
        return all_finished

    # --- everything else ------------------------------------------------------------------------------------------

    def _health_check(self, request: bytes, answer: Answer) -> None:
        self.dataplane.server_ready(lambda ready: answer(SERVING if ready else NOT_SERVING))

    def _server_ready(self, request: bytes, answer: Answer) -> None:
        parse_message(service_pb2.ServerReadyRequest, request)
        self.dataplane.server_ready(
            lambda ready: answer(service_pb2.ServerReadyResponse(ready=ready).SerializeToString()),
        )

    def _model_ready(self, request: bytes, answer: Answer) -> None:
        def tell(ready: bool) -> None:
            answer(service_pb2.ModelReadyResponse(ready=ready).SerializeToString())

        message = parse_message(service_pb2.ModelReadyRequest, request)
        version = parse_version(message.version)
        if message.name:
            self.dataplane.model_ready(message.name, version, tell)
        else:
            tell(False)

    def _server_live(self, request: Proto) -> Proto:
        return service_pb2.ServerLiveResponse(live=self.dataplane.server_live())

    def _server_metadata(self, request: Proto) -> Proto:
        name, version, extensions = self.dataplane.server_metadata()
        return service_pb2.ServerMetadataResponse(name=name, version=version, extensions=extensions)

    def _model_metadata(self, request: Proto) -> Proto:
        metadata = self.dataplane.model_metadata(request.name, parse_version(request.version))
        response = service_pb2.ModelMetadataResponse(
            name=metadata.name, versions=metadata.versions, platform=metadata.platform
        )
        for target, tensors in ((response.inputs, metadata.inputs), (response.outputs, metadata.outputs)):
            for name, datatype, shape in tensors:
                target.add(name=name, datatype=datatype, shape=shape)
        return response

    def _model_config(self, request: bytes) -> bytes:
        """The configuration as the broker serialized it, put in ModelConfigResponse{config = 1} as it is."""
        message = parse_message(service_pb2.ModelConfigRequest, request)
        config = self.dataplane.signature(message.name, parse_version(message.version)).config_proto
        return b"".join((b"\x0a", varint(len(config)), config))

    def _model_statistics(self, request: bytes, answer: Answer) -> None:
        message = parse_message(service_pb2.ModelStatisticsRequest, request)
        self.dataplane.statistics(
            message.name,
            parse_version(message.version),
            lambda rows: answer(rows if isinstance(rows, ServingError) else _all_statistics(rows)),
        )

    def _repository_index(self, request: bytes, answer: Answer) -> None:
        message = parse_message(service_pb2.RepositoryIndexRequest, request)
        if message.repository_name:
            raise Unsupported(NO_REPOSITORY_NAME)
        self.dataplane.index(
            message.ready, lambda rows: answer(rows if isinstance(rows, ServingError) else _index(rows))
        )

    def _repository_model_load(self, request: bytes, answer: Answer) -> None:
        message = parse_message(service_pb2.RepositoryModelLoadRequest, request)
        if message.repository_name:
            raise Unsupported(NO_REPOSITORY_NAME)
        config: str | None = None
        files: dict[str, bytes] = {}
        for name, parameter in message.parameters.items():
            expected = "string_param" if name == "config" else "bytes_param"
            if name != "config" and not name.startswith("file:"):
                raise InvalidArgument(f"unrecognized load parameter '{name}'.")
            if parameter.WhichOneof("parameter_choice") != expected:
                raise InvalidArgument(f"invalid value type for load parameter '{name}', expected {expected}.")
            if name == "config":
                config = parameter.string_param
            else:
                files[name] = parameter.bytes_param
        response = service_pb2.RepositoryModelLoadResponse().SerializeToString()
        self.dataplane.load(message.model_name, config, files, lambda error: answer(error or response))

    def _repository_model_unload(self, request: bytes, answer: Answer) -> None:
        message = parse_message(service_pb2.RepositoryModelUnloadRequest, request)
        if message.repository_name:
            raise Unsupported(NO_REPOSITORY_NAME)
        parameter = message.parameters.get("unload_dependents")
        if parameter is not None and parameter.WhichOneof("parameter_choice") != "bool_param":
            raise InvalidArgument("invalid value type for 'unload_dependents' parameter, expected bool_param.")
        dependents = parameter is not None and parameter.bool_param
        response = service_pb2.RepositoryModelUnloadResponse().SerializeToString()
        self.dataplane.unload(message.model_name, dependents, lambda error: answer(error or response))

    def _log_settings(self, request: Proto) -> Proto:
        settings = self.dataplane.log_settings
        change(settings, _log_changes(request.settings))
        response = service_pb2.LogSettingsResponse()
        for name, value in shown(settings).items():
            setattr(response.settings[name], _parameter_of(value), value)
        return response

    def _system_shared_memory_status(self, request: Proto) -> Proto:
        if request.name:
            raise NotFound(f"Unable to find system shared memory region: '{request.name}'")
        return service_pb2.SystemSharedMemoryStatusResponse()

    def _cuda_shared_memory_status(self, request: Proto) -> Proto:
        if request.name:
            raise NotFound(f"Unable to find cuda shared memory region: '{request.name}'")
        return service_pb2.CudaSharedMemoryStatusResponse()

    def _shared_memory_disabled(self, request: Proto) -> Proto:
        raise Unsupported(SHM_DISABLED)


def _answering(kind: Any, answer: Callable[[Proto], Proto]) -> Callable[[bytes], bytes]:
    def method(request: bytes) -> bytes:
        response: bytes = answer(parse_message(kind, request)).SerializeToString()
        return response

    return method


def _index(rows: list[IndexEntry]) -> bytes:
    response = service_pb2.RepositoryIndexResponse()
    for row in rows:
        version = str(row.version) if row.version >= 0 else ""
        response.models.add(name=row.name, version=version, state=row.state, reason=row.reason)
    serialized: bytes = response.SerializeToString()
    return serialized


_LOG_KINDS = dict.fromkeys(SWITCHES, ("bool_param", "boolean")) | {
    "log_verbose_level": ("uint32_param", "int32"),
    "log_format": ("string_param", "string"),
}


def _log_changes(settings: Any) -> dict[str, Any]:
    """Unknown names are ignored. Raises Unsupported or InvalidArgument."""
    if "log_file" in settings:
        raise Unsupported(FILE_IS_FIXED)
    changes: dict[str, Any] = {}
    for name, (parameter, kind) in _LOG_KINDS.items():
        if name in settings:
            if settings[name].WhichOneof("parameter_choice") != parameter:
                raise InvalidArgument(f"expect {kind} for '{name}'")
            changes[name] = getattr(settings[name], parameter)
    if changes.get("log_format", "default") not in FORMATS:
        raise InvalidArgument(f"invalid argument for log_format, got: {changes['log_format']}")
    return changes


def _parameter_of(value: bool | int | str) -> str:
    """The field of SettingValue for it (bool before int: it is one in Python)."""
    if isinstance(value, bool):
        return "bool_param"
    return "uint32_param" if isinstance(value, int) else "string_param"


class _Inference:
    """One ModelInfer. Invariant: it counts as in flight until ``_over``."""

    __slots__ = ("_answer", "_dataplane", "_in_flight", "_over", "id")

    def __init__(self, dataplane: DataPlane, in_flight: InFlight, answer: InferAnswer) -> None:
        self.id = 0  # the data plane's
        self._dataplane = dataplane
        self._in_flight = in_flight
        self._answer = answer
        self._over = False

    def on_reply(self, reply: Reply) -> None:
        """The first reply answers; a final one behind it brings nothing new."""
        if self._over:
            reply.release()
            return
        self._over = True
        self._in_flight.finished()
        self._answer(_rendered(reply))

    def cancel(self) -> None:
        """Does nothing to one that is answered."""
        if not self._over:
            self._over = True
            self._in_flight.finished()
            self._dataplane.cancel(self.id)


def _rendered(reply: Reply) -> Message | ServingError:
    if reply.error is not None:
        reply.release()
        return reply.error
    signature = reply.signature
    version = str(signature.version)
    try:
        pieces = encode_response(signature.model, version, reply.request_id, reply.parameters, reply.outputs)
    except ServingError as too_large:
        reply.release()
        return too_large
    return message_of(pieces, reply.release)


def _duration(duration: Duration) -> Proto:
    return service_pb2.StatisticDuration(count=duration.count, ns=duration.ns)


def _all_statistics(rows: list[ModelStatistics]) -> bytes:
    response = service_pb2.ModelStatisticsResponse(model_stats=[_statistics(row) for row in rows])
    data: bytes = response.SerializeToString()
    return data


def _statistics(row: ModelStatistics) -> Proto:
    return service_pb2.ModelStatistics(
        name=row.name,
        version=str(row.version),
        last_inference=row.last_inference_ms,
        inference_count=row.inference_count,
        execution_count=row.execution_count,
        inference_stats=_infer_statistics(row.inference_stats),
        batch_stats=[_batch_statistics(batch) for batch in row.batch_stats],
        response_stats={str(one.index): _response_statistics(one) for one in row.response_stats},
    )


def _infer_statistics(stats: InferStatistics) -> Proto:
    return service_pb2.InferStatistics(
        success=_duration(stats.success),
        fail=_duration(stats.fail),
        queue=_duration(stats.queue),
        compute_input=_duration(stats.compute_input),
        compute_infer=_duration(stats.compute_infer),
        compute_output=_duration(stats.compute_output),
        cache_hit=_duration(stats.cache_hit),
        cache_miss=_duration(stats.cache_miss),
    )


def _batch_statistics(batch: BatchStatistics) -> Proto:
    return service_pb2.InferBatchStatistics(
        batch_size=batch.batch_size,
        compute_input=_duration(batch.compute_input),
        compute_infer=_duration(batch.compute_infer),
        compute_output=_duration(batch.compute_output),
    )


def _response_statistics(response: ResponseStatistics) -> Proto:
    return service_pb2.InferResponseStatistics(
        compute_infer=_duration(response.compute_infer),
        compute_output=_duration(response.compute_output),
        success=_duration(response.success),
        fail=_duration(response.fail),
        empty_response=_duration(response.empty_response),
        cancel=_duration(response.cancel),
    )
