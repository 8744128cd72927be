"""Has no TritonPythonModel."""


class SomethingElse:
    pass
