"""One loaded model instance: a Batch goes in, an Executed comes out; the rest of its responses leave by themselves.

No socket, no thread, no clock and no memory of its own: all four are handed in.
"""

from __future__ import annotations

import json
from collections.abc import Coroutine
from typing import Any, Callable, Dict, FrozenSet, List, Optional, Tuple
from weakref import ref

from . import calls, forks, gpu
from .delivery import Delivery, OutputPlacer, Port, Roots, cancelled
from .event_loop import EventLoop
from .exception_text import exception_text
from .failures import Failures
from .logger import LogSink
from .lookup import using_decoupled_model_transaction_policy
from .open_request import MORE_THAN_ONE, OpenRequest
from .request import TRITONSERVER_REQUEST_RELEASE_RESCHEDULE, InferenceRequest
from .request import receive as receive_request
from .response import InferenceResponse
from .sequence_inputs import SequenceInputs
from .shared import errors, messages
from .tensor import Tensor, on_gpu, receive_bytes
from .tensor import receive as receive_tensor
from .user_model import UserModel

View = Callable[[messages.TensorRef], memoryview]
Final = Tuple[messages.Response, Roots]

_NO_OUTPUTS: FrozenSet[str] = frozenset()


class Session:
    """Runs batches one at a time, in the calling thread."""

    def __init__(
        self,
        model: UserModel,
        instance: str,
        outputs: OutputPlacer,
        port: Port,
        event_loop: EventLoop,
        log: LogSink,
        clock_ns: Callable[[], int],
        max_unread: int = 0,
    ) -> None:
        config = json.loads(model.args.get("model_config", "{}"))
        self._model = model
        self._instance = instance
        self._port = port
        self._event_loop = event_loop
        self._clock_ns = clock_ns
        self._input_gpu = gpu.input_device(model.args, config)
        self._failures = Failures(instance, model.model_file, log, clock_ns)
        declared = {entry["name"]: _datatype(entry.get("data_type", "")) for entry in config.get("output", [])}
        decoupled = using_decoupled_model_transaction_policy(config)
        self.delivery = Delivery(decoupled, declared, outputs, port, self._failures, max_unread)
        self._earlier_roots: Dict[int, Roots] = {}  # of rescheduled requests, by their ids
        self._sequences: Optional[SequenceInputs] = None
        if "sequence_batching" in config:
            self._sequences = SequenceInputs(config, model.args.get("model_repository", ""))
        self._executing = calls.Executing(waits=True)
        self._generation = forks.generation

    def execute(self, batch: messages.Batch, view: View, frames: List[bytes]) -> messages.Executed:
        """``view`` resolves a reference that has not its bytes itself to them, writable (1-D, format "B"), or raises
        ProtocolError. The inline outputs of the Executed go to the end of ``frames``."""
        delivery, clock_ns = self.delivery, self._clock_ns
        begin_ns = clock_ns()
        wanted, slots = batch.requests, batch.slots
        responses: List[messages.Response] = []
        if delivery.cancelled:
            wanted, slots, responses = self._without_cancelled(batch)
        opened = [OpenRequest(message, delivery) for message in wanted]
        if self._sequences is not None:
            opened = self._sequences.arrange(opened, slots, batch.places, delivery)
        returned: Any = None
        requests, failure = self._receive(opened, view)
        received_ns = clock_ns()
        if requests and not failure:
            returned, failure = self._run(batch.id, opened, requests)
        executed_ns = clock_ns()
        finals = self._fail_all(opened, failure) if failure else self._answer_all(opened, returned, frames)
        del requests, returned  # from here on only the model's own references keep the inputs
        responses += delivery.end_all(finals)
        again: List[int] = []
        if len(finals) < len(opened):
            for each in opened:
                each.remain()
            if not failure:
                again = [each.message.id for each in opened if each.release and self._reschedules(each)]
        end_ns = clock_ns()
        input_ns, infer_ns, output_ns = received_ns - begin_ns, executed_ns - received_ns, end_ns - executed_ns
        fields = (batch.id, input_ns, infer_ns, output_ns, bool(failure), responses, again, end_ns)
        return messages.new(messages.Executed, fields)

    def cancel(self, message: messages.Cancel) -> None:
        """From any thread. Requests may be named that have not come yet, or have been answered."""
        self.delivery.cancelled.update(message.requests)

    def forget_cancelled(self) -> None:
        """All requests that have been sent here have come."""
        if self.delivery.cancelled:
            self.delivery.cancelled &= self.delivery.open

    def finalize(self) -> str:
        """Calls the model's ``finalize``; returns "" or the text of what it raised."""
        self._event_loop.stop()
        finalize = getattr(self._model.instance, "finalize", None)
        if finalize is None:
            return ""
        try:
            finalize()
        except BaseException as error:
            self._failures.log_traceback(error)
            return exception_text(error)
        return ""

    def _without_cancelled(
        self, batch: messages.Batch
    ) -> Tuple[List[messages.Request], List[int], List[messages.Response]]:
        unwanted = self.delivery.cancelled
        responses = [cancelled(message.id) for message in batch.requests if message.id in unwanted]
        wanted = [message for message in batch.requests if message.id not in unwanted]
        slots = [slot for slot, message in zip(batch.slots, batch.requests) if message.id not in unwanted]
        unwanted.difference_update([response.request for response in responses])
        self.delivery.inline.difference_update([response.request for response in responses])
        return wanted, slots, responses

    # --- inputs

    def _receive(self, opened: List[OpenRequest], view: View) -> Tuple[List[InferenceRequest], str]:
        try:
            if self._sequences is None:
                return [self._receive_one(each, view) for each in opened], ""
            return self._receive_sequences(self._sequences, opened, view), ""
        except Exception as error:  # the text of one that is not ours may name segments and paths
            cause = str(error) if isinstance(error, errors.ProtocolError) else "the inputs cannot be read"
            return [], self._failures.before_execute(error, cause)

    def _receive_sequences(
        self, sequences: SequenceInputs, opened: List[OpenRequest], view: View
    ) -> List[InferenceRequest]:
        """The null requests of a batch share all but their controls: nothing is to be made of the rest."""
        requests = []
        null: List[Tensor] = []
        for each in opened:
            if not each.is_null:
                requests.append(self._receive_one(each, view))
                requests[-1]._inputs += sequences.tensors(each)
                continue
            if not null:
                null = self._null_tensors(sequences, next(one for one in opened if not one.is_null))
            requests.append(receive_request(each.message, null + sequences.null_controls(), each, _NO_OUTPUTS))
        return requests

    def _null_tensors(self, sequences: SequenceInputs, real: OpenRequest) -> List[Tensor]:
        inputs = sequences.null_inputs(real)
        if self._input_gpu is not None:
            inputs = [on_gpu(tensor, self._input_gpu) for tensor in inputs]
        return inputs + sequences.null_states(real)

    def _receive_one(self, opened: OpenRequest, view: View) -> InferenceRequest:
        message = opened.message
        inputs: List[Tensor] = []
        for reference in message.inputs:
            name, datatype, shape, place, shared = reference
            if type(place) is bytes:
                tensor, root = receive_bytes(name, datatype, shape, place), None
            else:
                tensor, root = receive_tensor(name, datatype, shape, view(reference), place, shared)
            if self._input_gpu is not None:
                tensor = on_gpu(tensor, self._input_gpu)
            inputs.append(tensor)
            if root is not None:
                opened.roots.append(ref(root))
        if self._earlier_roots:
            opened.roots += self._earlier_roots.pop(message.id, [])
        return receive_request(message, inputs, opened, self.delivery.output_names)

    # --- the model

    def _run(self, batch: int, opened: List[OpenRequest], requests: List[InferenceRequest]) -> Tuple[Any, str]:
        """What ``execute`` returned, or the text of its failure."""
        execute = getattr(self._model.instance, "execute", None)
        if execute is None:
            cause = "Python model {} does not implement `execute` method.".format(self._model.model_file)
            return None, self._failures.text(cause)
        self._executing.batch = batch
        entered = calls.executing.set(self._executing)
        try:
            returned = execute(requests[:])
            kind = type(returned)
            if kind is not list and returned is not None:
                if issubclass(kind, Coroutine):
                    returned = self._run_coroutine(batch, opened, returned)
                if issubclass(type(returned), list):
                    returned = list(returned)  # one of the model's own has methods of its own; here they may raise
        except BaseException as error:  # sys.exit() too: it must not end the process, nor pass for a return
            if forks.generation != self._generation:  # but a process that the model forked shall end
                raise
            return None, self._failures.raised(error)
        finally:
            calls.executing.reset(entered)
        return returned, self._malformed(opened, returned)

    def _run_coroutine(self, batch: int, opened: List[OpenRequest], coroutine: Coroutine[Any, Any, Any]) -> Any:
        """In default mode to its end. In decoupled mode ``execute`` has returned with its first step outstanding."""
        if self.delivery.decoupled:
            self._event_loop.run(
                coroutine,
                calls.Executing(batch, False),
                lambda returned, error: self._coroutine_ended(opened, returned, error),
            )
            return None
        outcome: List[Tuple[Any, Optional[BaseException]]] = []

        def on_end(returned: Any, error: Optional[BaseException]) -> None:
            outcome.append((returned, error))
            self._port.nudge()

        self._event_loop.run(coroutine, calls.Executing(batch, True), on_end)
        self._port.wait(lambda: outcome)
        returned, error = outcome.pop()
        try:
            if error is not None:
                raise error
            return returned
        finally:
            del error  # its traceback holds this frame, and by it the requests

    def _coroutine_ended(self, opened: List[OpenRequest], returned: Any, error: Optional[BaseException]) -> None:
        """In decoupled mode, in the event loop's thread."""
        if error is not None:
            failure = self._failures.raised(error)
        elif returned is not None:
            failure = self._failures.text(self._must_return_none())
        else:
            return
        told = [each.send_failure(failure) for each in opened]
        if not any(told):
            self._failures.log(failure)  # no client is told, so nobody else logs it

    # --- what it has returned

    def _malformed(self, opened: List[OpenRequest], returned: Any) -> str:
        """The text of a failure if ``returned`` answers the batch in no legal way, else "".

        Only the types of the model's objects are asked, never they themselves: ``bool()`` or ``isinstance`` would call
        methods of theirs, which may lie or raise.
        """
        if returned is None:
            return ""
        if self.delivery.decoupled:
            return self._failures.text(self._must_return_none())
        if type(returned) is not list:
            return self._failures.text("Expected a list in the execute return, found type '{}'.".format(type(returned)))
        if len(returned) != len(opened):
            return self._failures.text(
                "Number of InferenceResponse objects do not match the number of InferenceRequest objects. "
                "InferenceRequest(s) size is:{}, and InferenceResponse(s) size is:{}\n".format(
                    len(opened), len(returned)
                )
            )
        for each, response in zip(opened, returned):
            kind = type(response)
            if response is None or (kind is InferenceResponse and not each.release):
                continue
            if each.release == TRITONSERVER_REQUEST_RELEASE_RESCHEDULE:
                return self._failures.text(
                    "Expected a None object in the execute function return list for reschduled request, "
                    "found type '{}'.".format(type(response))
                )
            if not issubclass(kind, InferenceResponse):
                return self._failures.text(
                    "Expected an 'InferenceResponse' object in the execute function return list, "
                    "found type '{}'.".format(type(response))
                )
        return ""

    def _must_return_none(self) -> str:
        return "Python model '{}' is using the decoupled mode and the execute function must return None.".format(
            self._instance
        )

    def _fail_all(self, opened: List[OpenRequest], failure: str) -> List[Final]:
        finals = [
            (response, each.roots) for each in opened for response in [each.fail(failure)] if response is not None
        ]
        if opened and not finals:
            self._failures.log(failure)  # as above
        return finals

    def _answer_all(self, opened: List[OpenRequest], returned: Optional[List[Any]], frames: List[bytes]) -> List[Final]:
        finals: List[Final] = []
        for each, response in zip(opened, returned or ()):
            if response is None:
                continue
            final = each.returned(response, frames)
            if final is None:
                if not each.is_null:
                    self._failures.log(self._failures.text(MORE_THAN_ONE))
            else:
                finals.append((final, each.roots))
        return finals

    def _reschedules(self, opened: OpenRequest) -> bool:
        if opened.release != TRITONSERVER_REQUEST_RELEASE_RESCHEDULE or not opened.reschedule():
            return False
        self._earlier_roots[opened.message.id] = [root for root in opened.roots if root() is not None]
        return True


def _datatype(data_type: str) -> str:
    """Of the configuration's name for it."""
    return "BYTES" if data_type == "TYPE_STRING" else data_type[len("TYPE_") :]
