"""One loaded model instance: a Batch goes in, an Executed comes out.

No socket, no thread, no clock and no memory of its own: all four are handed in.
"""

from __future__ import annotations

import json
import os
from typing import Any, Callable, FrozenSet, List, Optional, Protocol, Tuple, Union
from weakref import ref

from . import bls, gpu
from .exception_text import exception_text, full_traceback, has_cause
from .lookup import using_decoupled_model_transaction_policy
from .request import InferenceRequest
from .request import receive as receive_request
from .response import InferenceResponse
from .retained import RetainedInputs
from .sender import MORE_THAN_ONE, Delivery
from .shared import errors, messages
from .tensor import Tensor, binary_form, on_gpu
from .tensor import receive as receive_tensor
from .triton_error import TritonModelException
from .user_model import UserModel

# name, wire datatype, shape, bytes in KServe's binary form (1-D, format "B", so len() is its nbytes).
PlacedTensor = Tuple[str, str, Tuple[int, ...], Union[bytes, memoryview, gpu.DeviceArray]]
View = Callable[[messages.TensorRef], memoryview]

_NO_RESPONSE = "The execute function returned no response for the request and sent none through its response sender."
_INTERNAL = int(errors.ErrorKind.INTERNAL)


class OutputPlacer(Protocol):
    """Where the tensors of a response go: a block of shared memory, or frames of the message."""

    def place(self, tensors: List[PlacedTensor]) -> Tuple[List[messages.TensorRef], int]:
        """Copies the tensors of ONE response (never empty); returns their references and the lease (0: inline)."""


class Session:
    """Runs batches one at a time, in the calling thread. Every request of a batch gets exactly one response."""

    def __init__(
        self,
        model: UserModel,
        instance: str,
        outputs: OutputPlacer,
        log: Callable[[str, str, int, str], None],  # level ("I", "W", "E", "V"), file, line, text
        clock_ns: Callable[[], int],
    ) -> None:
        config = json.loads(model.args.get("model_config", "{}"))
        self._model = model
        self._instance = instance
        self._place = outputs.place
        self._log = log
        self._clock_ns = clock_ns
        self._decoupled = using_decoupled_model_transaction_policy(config)
        self._input_gpu = gpu.input_device(model.args, config)
        self._output_names: FrozenSet[str] = frozenset(entry["name"] for entry in config.get("output", []))
        self._retained = RetainedInputs()
        self._pid = os.getpid()
        self._next_details_ns = 0

    def execute(self, batch: messages.Batch, view: View) -> messages.Executed:
        """``view`` resolves a reference to its writable bytes (1-D, format "B") or raises ProtocolError."""
        begin_ns = self._clock_ns()
        delivery = Delivery(self._answer)
        roots: List[List[ref[Any]]] = []
        returned: Any = None
        requests, failure = self._receive(batch.requests, view, delivery, roots)
        received_ns = self._clock_ns()
        if not failure:
            returned, failure = self._run(requests)
        executed_ns = self._clock_ns()
        delivery.close()
        failure = failure or self._malformed(requests, returned)
        if failure:
            responses = [self._fail(message, failure) for message in batch.requests]
            _keep_sent(responses, requests)
        else:
            responses = self._answer_all(requests, returned)
        del requests, returned  # from here on only the model's own references keep the inputs
        self._mark_retained(responses, roots)
        end_ns = self._clock_ns()
        return messages.Executed(
            batch.id, received_ns - begin_ns, executed_ns - received_ns, end_ns - executed_ns, bool(failure), responses
        )

    @property
    def has_retained(self) -> bool:
        """Whether the model still holds inputs of answered requests; then poll ``collect_released``."""
        return len(self._retained) > 0

    def collect_released(self) -> List[int]:
        """Ids of requests whose retained inputs have become free since the last call."""
        return self._retained.collect()

    def finalize(self) -> str:
        """Calls the model's ``finalize``; returns "" or the text of what it raised."""
        finalize = getattr(self._model.instance, "finalize", None)
        if finalize is None:
            return ""
        try:
            finalize()
        except BaseException as error:
            return exception_text(error)
        return ""

    def _receive(
        self, batch: List[messages.Request], view: View, delivery: Delivery, roots: List[List[ref[Any]]]
    ) -> Tuple[List[InferenceRequest], str]:
        requests: List[InferenceRequest] = []
        try:
            for message in batch:
                inputs: List[Tensor] = []
                living: List[ref[Any]] = []
                for reference in message.inputs:
                    tensor, root = receive_tensor(reference.name, reference.datatype, reference.shape, view(reference))
                    if self._input_gpu is not None:
                        tensor = on_gpu(tensor, self._input_gpu)
                    inputs.append(tensor)
                    if root is not None:
                        living.append(ref(root))
                requests.append(receive_request(message, inputs, delivery, self._output_names))
                roots.append(living)
        except Exception as error:  # the text of one that is not ours may name segments and paths
            roots.clear()
            cause = str(error) if isinstance(error, errors.ProtocolError) else "the inputs cannot be read"
            text = "Failed to process the request(s) for model instance '{}', message: {}".format(self._instance, cause)
            self._log_details(text, full_traceback(error))
            return [], text
        return requests, ""

    def _run(self, requests: List[InferenceRequest]) -> Tuple[Any, str]:
        """What ``execute`` returned, or the text of its failure."""
        execute = getattr(self._model.instance, "execute", None)
        if execute is None:
            cause = "Python model {} does not implement `execute` method.".format(self._model.model_file)
            return None, self._failure(cause)
        if self._decoupled:
            cause = "Python model '{}' is using the decoupled mode, which this version of tensorbus does not support."
            return None, self._failure(cause.format(self._instance))
        bls.Execution.running = True
        try:
            returned = execute(requests[:])
            # A list class of the model's own has methods of its own; here they may still raise.
            return (list(returned) if issubclass(type(returned), list) else returned), ""
        except BaseException as error:  # sys.exit() too: it must not end the process, nor pass for a return
            if os.getpid() != self._pid:  # but a process that the model forked shall end
                raise
            return None, self._raised(error)
        finally:
            bls.Execution.running = False

    def _malformed(self, requests: List[InferenceRequest], returned: Any) -> str:
        """The text of a failure if ``returned`` answers the batch in no legal way, else "".

        Only the types of the model's objects are asked, never they themselves: ``bool()`` or ``isinstance`` would call
        methods of theirs, which may lie or raise.
        """
        if returned is not None:
            if type(returned) is not list:
                return self._failure("Expected a list in the execute return, found type '{}'.".format(type(returned)))
            if len(returned) != len(requests):
                return self._failure(
                    "Number of InferenceResponse objects do not match the number of InferenceRequest objects. "
                    "InferenceRequest(s) size is:{}, and InferenceResponse(s) size is:{}\n".format(
                        len(requests), len(returned)
                    )
                )
            for response in returned:
                if response is not None and not issubclass(type(response), InferenceResponse):
                    return self._failure(
                        "Expected an 'InferenceResponse' object in the execute function return list, "
                        "found type '{}'.".format(type(response))
                    )
            if any(response is not None for response in returned):
                return ""
        return "" if any(map(_sent, requests)) else self._failure(_NO_RESPONSE)

    def _answer_all(self, requests: List[InferenceRequest], returned: Optional[List[Any]]) -> List[messages.Response]:
        responses: List[messages.Response] = []
        for request, response in zip(requests, [None] * len(requests) if returned is None else returned):
            message = request._message
            sent = _sent(request)
            if sent:
                responses.append(sent[0])
                if response is not None:
                    self._log_details(self._wrapped(MORE_THAN_ONE), "")
            elif response is None:
                responses.append(self._fail(message, self._failure(_NO_RESPONSE)))
            else:
                responses.append(self._answer(message, response))
                if request._sender is not None:  # a thread may have it
                    request._sender.responses.append(responses[-1])
        return responses

    def _answer(self, message: messages.Request, response: InferenceResponse) -> messages.Response:
        """Sends what was asked for of the outputs, in the order of the response, as they are now."""
        try:
            error = response._error
            if error is not None:
                return messages.Response(message.id, [], 0, (int(error._code), error._message), response._parameters)
            parameters = response._parameters
            wanted = message.outputs or self._output_names
            tensors = [
                (tensor._name, tensor._datatype, tensor._shape, binary_form(tensor))
                for tensor in response._tensors
                if tensor._name in wanted
            ]
        except TritonModelException as refused:
            return self._fail(message, self._failure(str(refused)))
        except Exception as broken:  # a subclass of the model's own that has not initialized ours
            return self._fail(message, self._failure("the response cannot be read", full_traceback(broken)))
        try:
            outputs, lease = self._place(tensors) if tensors else ([], 0)
        except Exception as full:  # its text may name segments and paths, so it is for the log only
            return self._fail(message, self._failure("the outputs found no place", full_traceback(full)))
        return messages.Response(message.id, outputs, lease, None, parameters)

    def _mark_retained(self, responses: List[messages.Response], roots: List[List[ref[Any]]]) -> None:
        for index, living in enumerate(roots):
            for reference in living:
                if reference() is not None:
                    self._retained.hold(responses[index].request, living)
                    responses[index] = responses[index]._replace(retained=True)
                    break

    def _fail(self, message: messages.Request, failure: str) -> messages.Response:
        return messages.Response(message.id, [], 0, (_INTERNAL, failure))

    def _failure(self, cause: str, details: str = "") -> str:
        """The client's text. Whoever answers the client logs it too; ``details`` are for the log alone."""
        text = self._wrapped(cause)
        if details:
            self._log_details(text, details)
        return text

    def _raised(self, error: BaseException) -> str:
        """The client's text of an exception, which has no causes; the log has them."""
        return self._failure(exception_text(error), full_traceback(error) if has_cause(error) else "")

    def _wrapped(self, cause: str) -> str:
        return "Failed to process the request(s) for model '{}', message: {}".format(self._instance, cause)

    def _log_details(self, text: str, details: str) -> None:
        """Once a second at most: ten thousand bad requests are not ten thousand tracebacks."""
        now_ns = self._clock_ns()
        if now_ns >= self._next_details_ns:
            self._next_details_ns = now_ns + 1_000_000_000
            self._log("E", os.path.basename(self._model.model_file), 0, "{}\n{}".format(text, details))


def _sent(request: InferenceRequest) -> List[messages.Response]:
    """What went through the request's sender."""
    sender = request._sender
    return sender.responses if sender is not None else []


def _keep_sent(responses: List[messages.Response], requests: List[InferenceRequest]) -> None:
    """A request that was answered by its sender is not failed by what happened after."""
    for index, request in enumerate(requests):
        responses[index : index + 1] = _sent(request) or [responses[index]]
