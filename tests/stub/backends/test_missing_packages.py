from __future__ import annotations

import sys

import pytest
from _tensorbus_app.stub.user_model import LoadError


@pytest.mark.parametrize("backend, package", [("onnxruntime", "onnxruntime"), ("pytorch", "torch")])
def test_a_backend_without_its_package_says_so(load, monkeypatch, backend, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(LoadError) as refused:
        load(backend, input=[], output=[])
    assert str(refused.value).startswith(
        f"model 'm' needs the Python package {package}, which the interpreter of its backend lacks"
    )
