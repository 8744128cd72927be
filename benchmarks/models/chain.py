"""OUTPUT0 = INPUT0, after so many calls of the model ``identity`` as the model's name says: each gets the last one's
output."""

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.calls = int(args["model_name"].rpartition("_")[2])

    def execute(self, requests):
        return [pb_utils.InferenceResponse(self.run(request)) for request in requests]

    def run(self, request):
        tensors = request.inputs()
        for _ in range(self.calls):
            array = tensors[0].as_numpy()
            call = pb_utils.InferenceRequest(
                model_name="identity",
                inputs=[pb_utils.Tensor("INPUT0", array)],
                requested_output_names=["OUTPUT0"],
            )
            response = call.exec()
            if response.has_error():
                raise pb_utils.TritonModelException(response.error().message())
            tensors = response.output_tensors()
        return tensors
