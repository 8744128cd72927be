"""Does what STEPS says with each request's response sender, then returns what the last step says.

What a step raises is noted, unless it begins with "!"; then it escapes. "later" leaves the steps that follow, up to the
last, to a thread that waits until ``execute`` has returned. The one step "notes" returns what was noted since the last
time.
"""

import threading

import numpy as np
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


def response(number):
    tensors = [pb_utils.Tensor(name, np.array([number], dtype=np.int32)) for name in ("OUT", "OTHER")]
    return pb_utils.InferenceResponse(tensors)


def told():
    return pb_utils.InferenceResponse(error=pb_utils.TritonError("told", pb_utils.TritonError.NOT_FOUND))


SENDS = {
    "send": lambda sender: sender.send(response(1)),
    "send 2": lambda sender: sender.send(response(2)),
    "send final": lambda sender: sender.send(response(1), FINAL),
    "send 2 final": lambda sender: sender.send(response(2), flags=FINAL),
    "error": lambda sender: sender.send(told()),
    "error final": lambda sender: sender.send(told(), FINAL),
    "empty final": lambda sender: sender.send(pb_utils.InferenceResponse([]), FINAL),
    "final": lambda sender: sender.send(flags=FINAL),
    "nothing": lambda sender: sender.send(),
    "flag 2": lambda sender: sender.send(response(1), 2),
    "flag 2 alone": lambda sender: sender.send(flags=2),
}
RETURNS = {
    "return None": lambda: None,
    "return [None]": lambda: [None],
    "return": lambda: [response(9)],
    "return told": lambda: [told()],
    "return []": list,
    "return tuple": lambda: (response(9),),
    "return int": lambda: 7,
    "return two": lambda: [response(9), response(9)],
    "raise": lambda: [][0],
}


class TritonPythonModel:
    def initialize(self, args):
        self.notes = []
        self.thread = None
        self.returned = threading.Event()

    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            *steps, end = (step.decode() for step in request.inputs()[0].as_numpy())
            if end == "notes":
                return self.tell(sender)
            self.returned.clear()
            now, later = (
                (steps[: steps.index("later")], steps[steps.index("later") + 1 :]) if "later" in steps else (steps, [])
            )
            for step in now:
                self.step(sender, step)
            if later:
                self.thread = threading.Thread(target=self.go_on, args=(sender, later))
                self.thread.start()
                threading.Timer(0.1, self.returned.set).start()
        return RETURNS[end]()

    def step(self, sender, step):
        if step.startswith("!"):
            SENDS[step[1:]](sender)
            return
        try:
            SENDS[step](sender)
        except Exception as error:
            self.notes.append(f"{step}: {type(error).__name__}: {error}")

    def go_on(self, sender, steps):
        self.returned.wait()
        for step in steps:
            self.step(sender, step)

    def tell(self, sender):
        """Through the sender, which is right in both modes."""
        if self.thread is not None:
            self.thread.join()
        notes, self.notes, self.thread = self.notes, [], None
        tensor = pb_utils.Tensor("NOTES", np.array(notes, dtype=np.object_))
        sender.send(pb_utils.InferenceResponse([tensor]), FINAL)
