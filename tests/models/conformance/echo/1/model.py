"""Returns each tensor it gets: IN_<datatype> comes back as OUT_<datatype>."""

import triton_python_backend_utils as pb_utils


def echo(tensor):
    name = tensor.name().replace("IN_", "OUT_")
    if name == "OUT_BF16":  # NumPy has no bfloat16
        return pb_utils.Tensor.from_dlpack(name, tensor.to_dlpack())
    return pb_utils.Tensor(name, tensor.as_numpy())


class TritonPythonModel:
    def execute(self, requests):
        return [
            pb_utils.InferenceResponse([echo(tensor) for tensor in sorted(request.inputs(), key=lambda t: t.name())])
            for request in requests
        ]
