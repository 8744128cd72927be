"""The service as the real clients see it, over a real socket, with a broker of plain functions behind it."""

from __future__ import annotations

from functools import partial
from typing import Any

import grpc
import grpc.aio
import ml_dtypes
import numpy
import pytest
import tritonclient.grpc as client
import tritonclient.grpc.aio as aio_client
from tritonclient.utils import InferenceServerException, triton_to_np_dtype

from gateway.grpc_engine import GrpcEngine
from gateway.grpc_service import GrpcService
from gateway.proto import service_pb2
from protocol.datatypes import BY_NAME
from protocol.errors import InternalError, InvalidArgument, Unavailable, Unsupported
from tests.gateway.fake_bus import FakeBus, ModelConfig, Submitted, signature
from tests.gateway.grpc_stand import (
    SERVICE,
    Serve,
    channel_to,
    raising,
    status_of,
    tensor,
    unary_call,
    with_client,
)


def test_server_and_model_health(serve: Serve) -> None:
    def talk(triton: client.InferenceServerClient, bus: FakeBus) -> None:
        assert triton.is_server_live()
        assert triton.is_server_ready()
        assert triton.is_model_ready("echo")
        assert not triton.is_model_ready("")
        bus.is_ready = False
        assert not triton.is_server_ready()
        with pytest.raises(InferenceServerException, match="Request for unknown model: 'nope' is not found") as caught:
            triton.is_model_ready("nope")
        assert caught.value.status() == "StatusCode.NOT_FOUND"

    with_client(serve, talk)


def test_health_check_follows_server_readiness(serve: Serve) -> None:
    async def talk(bus: FakeBus, engine: GrpcEngine) -> None:
        async with channel_to(engine) as channel:
            check = channel.unary_unary("/grpc.health.v1.Health/Check")
            assert await check(b"\x0a\x03any") == b"\x08\x01"
            bus.is_ready = False
            assert await check(b"") == b"\x08\x02"

    serve(talk)


def test_metadata_and_configuration(serve: Serve) -> None:
    def talk(triton: client.InferenceServerClient, bus: FakeBus) -> None:
        server = triton.get_server_metadata()
        assert server.name == "triton"
        assert "statistics" in server.extensions
        bus.add(signature("batched", max_batch_size=8))
        model = triton.get_model_metadata("batched")
        assert (model.name, list(model.versions), model.platform) == ("batched", ["1"], "python")
        assert [(i.name, i.datatype, list(i.shape)) for i in model.inputs] == [("IN", "INT32", [-1, -1])]
        assert triton.get_model_config("batched", "1").config == ModelConfig(
            name="batched", backend="python", max_batch_size=8
        )

    with_client(serve, talk)


def test_statistics(serve: Serve) -> None:
    def talk(triton: client.InferenceServerClient, bus: FakeBus) -> None:
        (row,) = triton.get_inference_statistics("echo").model_stats
        assert (row.name, row.version, row.last_inference, row.inference_count, row.execution_count) == (
            ("echo", "1", 1234, 5, 6)
        )
        stats = row.inference_stats
        named = (stats.success, stats.fail, stats.queue, stats.compute_input, stats.compute_infer)
        named += (stats.compute_output, stats.cache_hit, stats.cache_miss)
        assert [(duration.count, duration.ns) for duration in named] == [(n, n * 10) for n in range(1, 9)]
        (batch,) = row.batch_stats
        assert (batch.batch_size, batch.compute_input.count, batch.compute_output.ns) == (4, 9, 110)
        assert len(triton.get_inference_statistics().model_stats) == 3
        with pytest.raises(InferenceServerException, match="requested model 'nope' is not available") as caught:
            triton.get_inference_statistics("nope")
        assert caught.value.status() == "StatusCode.INVALID_ARGUMENT"

    with_client(serve, talk)


def test_repository_index(serve: Serve) -> None:
    async def talk(bus: FakeBus, engine: GrpcEngine) -> None:
        async with aio_client.InferenceServerClient(f"127.0.0.1:{engine.port}") as triton:
            rows = (await triton.get_model_repository_index()).models
            assert [(row.name, row.version, row.state) for row in rows] == [
                ("decoupled", "1", "READY"),
                ("echo", "1", "READY"),
                ("manual", "1", "READY"),
                ("bad", "1", "UNAVAILABLE"),
                ("cold", "", ""),
            ]
        async with channel_to(engine) as channel:
            index = channel.unary_unary(SERVICE + "RepositoryIndex")
            request = service_pb2.RepositoryIndexRequest(ready=True)
            response = service_pb2.RepositoryIndexResponse.FromString(await index(request.SerializeToString()))
            assert len(response.models) == 3
            call = index(service_pb2.RepositoryIndexRequest(repository_name="r").SerializeToString())
            assert await status_of(call) == (
                grpc.StatusCode.UNIMPLEMENTED,
                "'repository_name' specification is not supported",
            )

    serve(talk)


def test_models_are_loaded_and_unloaded(serve: Serve) -> None:
    def talk(triton: client.InferenceServerClient, bus: FakeBus) -> None:
        triton.load_model("echo")
        triton.load_model("echo", config="{}", files={"file:1/model.py": b"\0x"})
        triton.unload_model("echo")
        triton.unload_model("echo", unload_dependents=True)
        assert bus.controlled == [
            ("load", "echo", None, {}),
            ("load", "echo", "{}", {"file:1/model.py": b"\0x"}),
            ("unload", "echo", False),
            ("unload", "echo", True),
        ]

    with_client(serve, talk)


def test_why_a_model_is_not_loaded_is_said(serve: Serve) -> None:
    def talk(triton: client.InferenceServerClient, bus: FakeBus) -> None:
        bus.control_error = Unavailable("not allowed")
        assert raising(triton, "load_model", "echo") == ("UNAVAILABLE", "not allowed")
        assert raising(triton, "unload_model", "echo") == ("UNAVAILABLE", "not allowed")

    with_client(serve, talk)


@pytest.mark.parametrize(
    ("method", "parameters", "text"),
    [
        ("Load", {"x": {"string_param": "y"}}, "unrecognized load parameter 'x'."),
        (
            "Load",
            {"config": {"bytes_param": b"{}"}},
            "invalid value type for load parameter 'config', expected string_param.",
        ),
        (
            "Load",
            {"file:1/model.py": {"string_param": "x"}},
            "invalid value type for load parameter 'file:1/model.py', expected bytes_param.",
        ),
        (
            "Unload",
            {"unload_dependents": {"string_param": "x"}},
            "invalid value type for 'unload_dependents' parameter, expected bool_param.",
        ),
    ],
)
def test_a_bad_control_request(serve: Serve, method: str, parameters: dict[str, dict[str, Any]], text: str) -> None:
    async def talk(bus: FakeBus, engine: GrpcEngine) -> None:
        request = getattr(service_pb2, f"RepositoryModel{method}Request")(model_name="m")
        for name, value in parameters.items():
            request.parameters[name].CopyFrom(service_pb2.ModelRepositoryParameter(**value))
        async with channel_to(engine) as channel:
            call = channel.unary_unary(f"{SERVICE}RepositoryModel{method}")
            assert await status_of(call(request.SerializeToString())) == (grpc.StatusCode.INVALID_ARGUMENT, text)
            request.repository_name = "r"
            assert await status_of(call(request.SerializeToString())) == (
                grpc.StatusCode.UNIMPLEMENTED,
                "'repository_name' specification is not supported",
            )
        assert bus.controlled == []

    serve(talk)


def test_client_shared_memory_is_disabled(serve: Serve) -> None:
    def talk(triton: client.InferenceServerClient, bus: FakeBus) -> None:
        disabled = (
            "UNIMPLEMENTED",
            "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable.",
        )
        assert raising(triton, "register_system_shared_memory", "r", "/key", 64) == disabled
        assert raising(triton, "unregister_system_shared_memory") == disabled
        assert raising(triton, "register_cuda_shared_memory", "r", b"", 0, 64) == disabled
        assert raising(triton, "unregister_cuda_shared_memory") == disabled
        assert not triton.get_system_shared_memory_status().regions
        assert not triton.get_cuda_shared_memory_status().regions
        assert raising(triton, "get_system_shared_memory_status", "r") == (
            ("NOT_FOUND", "Unable to find system shared memory region: 'r'")
        )

    with_client(serve, talk)


def sample(datatype: str) -> numpy.ndarray[Any, Any]:
    if datatype == "BYTES":
        return numpy.array([b"", b"two", b"drei"], numpy.object_)
    if datatype == "BF16":
        return numpy.array([0, 1, 1], ml_dtypes.bfloat16)
    return numpy.array([0, 1, 1], triton_to_np_dtype(datatype))


@pytest.mark.parametrize("datatype", BY_NAME)
def test_every_datatype_comes_back_as_it_was_sent(serve: Serve, datatype: str) -> None:
    def talk(triton: client.InferenceServerClient, bus: FakeBus) -> None:
        bus.add(signature("typed", {"IN": (datatype, (-1,))}), Submitted.echo)
        array = sample(datatype)
        outputs = [client.InferRequestedOutput("OUT")]
        result = triton.infer("typed", [tensor(array, datatype)], outputs=outputs, request_id="42")
        numpy.testing.assert_array_equal(result.as_numpy("OUT"), array)
        response = result.get_response()
        assert (response.model_name, response.model_version, response.id) == ("typed", "1", "42")
        assert response.outputs[0].datatype == datatype
        assert not response.parameters
        assert bus.submitted[0].request.outputs == ["OUT"]

    with_client(serve, talk)


def test_typed_contents_reach_the_model(serve: Serve) -> None:
    async def talk(bus: FakeBus, engine: GrpcEngine) -> None:
        request = service_pb2.ModelInferRequest(model_name="echo")
        contents = service_pb2.InferTensorContents(int_contents=[5, 6, 7])
        request.inputs.add(name="IN", datatype="INT32", shape=[3], contents=contents)
        async with channel_to(engine) as channel:
            response = await unary_call(channel, request)
        assert list(response.raw_output_contents) == [numpy.array([5, 6, 7], numpy.int32).tobytes()]

    serve(talk)


def test_parameters_travel_both_ways(serve: Serve) -> None:
    def talk(triton: client.InferenceServerClient, bus: FakeBus) -> None:
        bus.models["manual"] = partial(Submitted.echo, parameters={"n": 3, "s": "x", "b": True, "d": 0.5})
        result = triton.infer(
            "manual",
            [tensor()],
            sequence_id=7,
            sequence_start=True,
            priority=2,
            timeout=5000,
            parameters={"free": "yes", "k": 4},
        )
        request = bus.submitted[0].request
        assert request.parameters == {"free": "yes", "k": 4}
        assert (request.correlation_id, request.flags, request.priority, request.timeout_us) == (7, 1, 2, 5000)
        found = result.get_response().parameters
        assert (found["n"].int64_param, found["s"].string_param, found["b"].bool_param) == (3, "x", True)
        assert found["d"].double_param == 0.5

    with_client(serve, talk)


def test_request_errors_have_triton_s_status_and_words(serve: Serve) -> None:
    def talk(triton: client.InferenceServerClient, bus: FakeBus) -> None:
        assert raising(triton, "infer", "nope", [tensor()]) == (
            ("NOT_FOUND", "Request for unknown model: 'nope' is not found")
        )
        assert raising(triton, "infer", "echo", [tensor()], model_version="9") == (
            ("NOT_FOUND", "Request for unknown model: 'echo' version 9 is not found")
        )
        assert raising(triton, "infer", "echo", [tensor()], model_version="one") == (
            "INVALID_ARGUMENT",
            "failed to get model version from specified version string 'one' (details: stol), "
            "version should be an integral value > 0",
        )
        assert raising(triton, "infer", "decoupled", [tensor()]) == (
            ("UNIMPLEMENTED", "ModelInfer RPC doesn't support models with decoupled transaction policy")
        )
        empty = client.InferInput("IN", [3], "INT32")
        assert raising(triton, "infer", "echo", [empty]) == (
            ("INVALID_ARGUMENT", "unable to find data for input tensor 'IN' for model 'echo' in request.")
        )

    with_client(serve, talk)


def test_a_model_s_error_is_the_call_s(serve: Serve) -> None:
    def talk(triton: client.InferenceServerClient, bus: FakeBus) -> None:
        bus.models["manual"] = partial(Submitted.answer, error=InternalError("it broke"))
        assert raising(triton, "infer", "manual", [tensor()]) == ("INTERNAL", "it broke")

    with_client(serve, talk)


def test_an_output_can_be_classified(serve: Serve) -> None:
    def talk(triton: client.InferenceServerClient, bus: FakeBus) -> None:
        outputs = [client.InferRequestedOutput("OUT", class_count=2)]
        result = triton.infer("echo", [tensor()], outputs=outputs)
        assert list(result.as_numpy("OUT")) == [b"3:2", b"2:1"]
        bus.add(signature("typed", {"IN": ("BOOL", (-1,))}), Submitted.echo)
        flags = tensor(numpy.array([True]), "BOOL")
        assert raising(triton, "infer", "typed", [flags], outputs=outputs) == (
            ("INVALID_ARGUMENT", "class result not available for output due to unsupported type 'BOOL'")
        )

    with_client(serve, talk)


# --- logging ------------------------------------------------------------------------------------------------------


def test_log_settings_are_shown_and_changed(serve: Serve) -> None:
    def talk(triton: client.InferenceServerClient, bus: FakeBus) -> None:
        found = triton.get_log_settings().settings
        assert {name: getattr(value, value.WhichOneof("parameter_choice")) for name, value in found.items()} == {
            "log_file": "server.log",
            "log_info": True,
            "log_warning": True,
            "log_error": True,
            "log_verbose_level": 0,
            "log_format": "default",
        }
        assert found["log_verbose_level"].WhichOneof("parameter_choice") == "uint32_param"
        changed = triton.update_log_settings({"log_error": False, "log_verbose_level": 2, "log_format": "ISO8601"})
        assert changed.settings["log_verbose_level"].uint32_param == 2
        settings = bus.dataplane.log_settings
        assert (settings.log_info, settings.log_error, settings.log_format) == (True, False, "ISO8601")

    with_client(serve, talk)


@pytest.mark.parametrize(
    ("name", "value", "refusal"),
    [
        ("log_warning", {"uint32_param": 1}, InvalidArgument("expect boolean for 'log_warning'")),
        ("log_verbose_level", {"bool_param": True}, InvalidArgument("expect int32 for 'log_verbose_level'")),
        ("log_format", {}, InvalidArgument("expect string for 'log_format'")),
        ("log_format", {"string_param": "x"}, InvalidArgument("invalid argument for log_format, got: x")),
        ("log_file", {}, Unsupported("log file location can not be updated through network protocol")),
    ],
)
def test_a_bad_log_setting_changes_nothing(bus: FakeBus, name: str, value: dict[str, Any], refusal: Exception) -> None:
    request = service_pb2.LogSettingsRequest()
    request.settings["log_info"].bool_param = False
    request.settings[name].CopyFrom(request.SettingValue(**value))
    with pytest.raises(type(refusal)) as caught:
        GrpcService(bus.dataplane).unary(SERVICE + "LogSettings", request.SerializeToString(), print)
    assert str(caught.value) == str(refusal)
    assert bus.dataplane.log_settings.log_info
