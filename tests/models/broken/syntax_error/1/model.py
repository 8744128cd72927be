"""Is no Python."""

class TritonPythonModel
