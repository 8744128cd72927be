"""Refuses to start."""


class TritonPythonModel:
    def initialize(self, args):
        raise ValueError("not today")

    def execute(self, requests):
        return None
