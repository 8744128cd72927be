"""Lacks ``execute``: it loads, and fails when asked."""


class TritonPythonModel:
    def initialize(self, args):
        pass
