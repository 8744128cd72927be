"""OUTPUT0 = INPUT0, after 5 ms of the CPU."""

import time

import triton_python_backend_utils as pb_utils

WORK_NS = 5_000_000


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            end_ns = time.thread_time_ns() + WORK_NS
            while time.thread_time_ns() < end_ns:
                pass
            array = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", array)]))
        return responses
