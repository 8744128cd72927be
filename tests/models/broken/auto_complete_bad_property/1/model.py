"""Adds an input with a property that does not exist."""


class TritonPythonModel:
    @staticmethod
    def auto_complete_config(auto_complete_model_config):
        auto_complete_model_config.add_input({"name": "X", "data_type": "TYPE_INT32", "dims": [1], "colour": "red"})
        return auto_complete_model_config

    def execute(self, requests):
        return None
