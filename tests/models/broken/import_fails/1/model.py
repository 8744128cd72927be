"""Imports what is not there."""

import no_such_module_anywhere  # noqa: F401


class TritonPythonModel:
    def execute(self, requests):
        return None
