"""Has neither a config.pbtxt nor an auto_complete_config."""


class TritonPythonModel:
    def execute(self, requests):
        return None
