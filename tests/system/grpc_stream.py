"""A gRPC stream of tritonclient, read answer by answer."""

from __future__ import annotations

import contextlib
import queue
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import tritonclient.grpc
from tritonclient.utils import InferenceServerException

from tests.system.conftest import CONFIG, Server

DECOUPLED = CONFIG + "model_transaction_policy { decoupled: true }\n"


class Answer(NamedTuple):
    """One message of the stream. ``error`` is "" or the text of an error, which has no id."""

    data: list[float] | None  # None where there are no outputs
    final: bool = False
    id: str = ""
    error: str = ""
    parameters: dict[str, Any] = {}


class Stream:
    """Asks for the final flag even if it comes alone, unless told otherwise."""

    def __init__(self, url: str) -> None:
        self.client = tritonclient.grpc.InferenceServerClient(url)
        self._answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
        self.client.start_stream(lambda result, error: self._answers.put((result, error)))

    def send(self, model: str, values: Sequence[float], case: str = "", flagged: bool = True, **options: Any) -> None:
        """``case`` is a parameter of the request."""
        array = np.array(values, np.float32)
        tensor = tritonclient.grpc.InferInput("IN", array.shape, "FP32")
        tensor.set_data_from_numpy(array)
        if case:
            options["parameters"] = {"case": case}
        self.client.async_stream_infer(model, [tensor], enable_empty_final_response=flagged, **options)

    def next(self, timeout_s: float = 20.0) -> Answer:
        result, error = self._answers.get(timeout=timeout_s)
        if error is not None:
            assert isinstance(error, InferenceServerException)
            return Answer(None, error=error.message())
        response = result.get_response()
        parameters = {key: _value(value) for key, value in response.parameters.items()}
        final = bool(parameters.pop("triton_final_response", False))
        data = result.as_numpy("OUT").tolist() if response.outputs else None
        return Answer(data, final, response.id, "", parameters)

    def until_final(self) -> list[Answer]:
        """All answers up to the final flag, or to an error, of one request."""
        answers = [self.next()]
        while not (answers[-1].final or answers[-1].error):
            answers.append(self.next())
        return answers

    def is_silent(self, for_s: float) -> bool:
        try:
            self._answers.get(timeout=for_s)
        except queue.Empty:
            return True
        return False

    def cancel(self) -> None:
        """The stream ends, and with it all that it asked for."""
        self.client.stop_stream(cancel_requests=True)


def _value(parameter: Any) -> Any:
    return getattr(parameter, parameter.WhichOneof("parameter_choice"))


@contextlib.contextmanager
def streaming(server: Server) -> Iterator[Stream]:
    stream = Stream(server.grpc)
    try:
        yield stream
    finally:
        stream.client.close()
