"""Leaves while it initializes."""

import os


class TritonPythonModel:
    def initialize(self, args):
        os._exit(3)

    def execute(self, requests):
        return None
