"""As many responses as INPUT0 says, each with its number, and a final flag behind them."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            count = int(pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()[0])
            for number in range(count):
                output = pb_utils.Tensor("OUTPUT0", np.array([number], np.float32))
                sender.send(pb_utils.InferenceResponse([output]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
