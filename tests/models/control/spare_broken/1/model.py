"""Cannot be loaded."""


class TritonPythonModel:
    def initialize(self, args):
        raise ValueError("boom")
