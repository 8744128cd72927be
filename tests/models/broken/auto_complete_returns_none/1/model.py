"""Its auto_complete_config forgets to return."""


class TritonPythonModel:
    @staticmethod
    def auto_complete_config(auto_complete_model_config):
        auto_complete_model_config.set_max_batch_size(0)

    def execute(self, requests):
        return None
