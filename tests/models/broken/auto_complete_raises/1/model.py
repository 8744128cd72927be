"""Its auto_complete_config raises."""


class TritonPythonModel:
    @staticmethod
    def auto_complete_config(auto_complete_model_config):
        raise RuntimeError("cannot complete")

    def execute(self, requests):
        return None
