"""OUTPUT0 = INPUT0, after 2 ms and 0.01 ms for each row of the batch, as a model on an accelerator takes."""

import time

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        arrays = [pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy() for request in requests]
        time.sleep(0.002 + 0.00001 * sum(len(array) for array in arrays))
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", array)]) for array in arrays]
