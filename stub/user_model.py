"""The user's model file: finding it, importing it, making and initialising its ``TritonPythonModel``.

A model's own file is imported as ``<version>.<stem>`` with its version folder as the package, so it can import its
neighbours relatively and absolutely; that of a Python-based backend, which lies elsewhere, as plain ``<stem>``. On
sys.path the user's folders come after the standard library and before site-packages.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from types import ModuleType
from typing import Any, Dict, Iterator

from . import logger
from .exception_text import exception_text
from .model_config import ModelConfig
from .shared import errors
from .triton_error import TritonModelException

_model_dir = ""  # of the one model of this process


class LoadError(Exception):
    """Loading failed; ``str(error)`` is the text for the client (``Failed.text``), the cause what the model raised."""

    def __init__(self, text: str, kind: errors.ErrorKind = errors.ErrorKind.INTERNAL) -> None:
        super().__init__(text)
        self.kind = kind


class UserModel:
    """An instance of the user's ``TritonPythonModel`` and what the stub must know of it."""

    def __init__(self, instance: Any, model_file: str, args: Dict[str, str]) -> None:
        self.instance = instance
        self.model_file = model_file
        self.args = args

    @classmethod
    def load(cls, model_file: str, args: Dict[str, str], version_dir: str = "") -> UserModel:
        """Imports the file, instantiates the class, calls ``initialize(args)``. Raises LoadError."""
        try:
            instance = _import(model_file, version_dir).TritonPythonModel()
            if hasattr(instance, "initialize"):
                instance.initialize(dict(args))
        except LoadError:
            raise
        except BaseException as error:  # SystemExit too: sys.exit() in a model is an error of the model
            raise LoadError(exception_text(error)) from error
        return cls(instance, model_file, args)


def auto_complete(model_file: str, args: Dict[str, str], version_dir: str = "") -> str:
    """Imports the file and returns the configuration (JSON) as its ``auto_complete_config`` left it.

    ``args["model_config"]`` unchanged where the model has none. Raises LoadError.
    """
    try:
        model_class = _import(model_file, version_dir).TritonPythonModel
        if not hasattr(model_class, "auto_complete_config"):
            return args["model_config"]
        completed = model_class.auto_complete_config(ModelConfig(args["model_config"]))
        if isinstance(completed, ModelConfig):
            return completed.to_json()
    except LoadError:
        raise
    except BaseException as error:
        raise LoadError(exception_text(error)) from error
    name = ModelConfig(args["model_config"]).name
    raise LoadError(
        "auto_complete_config function in model '{}' must return a valid pb.ModelConfig object.".format(name)
    )


def get_model_dir() -> str:
    """``pb_utils.get_model_dir``: the folder of the model file; the model's version folder if a backend runs it."""
    if not _model_dir:
        raise TritonModelException("No model has been loaded.")
    return _model_dir


def _import(model_file: str, version_dir: str) -> ModuleType:
    """``version_dir`` is the model's; "" is the file's folder."""
    global _model_dir
    path = os.path.abspath(model_file)
    if not os.path.isfile(path):
        raise LoadError("Failed to preinitialize Python stub: Python model file not found in '{}'".format(model_file))
    folder, file_name = os.path.split(path)
    stem = os.path.splitext(file_name)[0]
    sys.argv = [""]  # unittest.main() in a model reads it
    _warn_of_taken_names(folder)
    if version_dir and not path.startswith(os.path.join(os.path.abspath(version_dir), "")):
        _model_dir = os.path.abspath(version_dir)
        _put_on_path(folder)
        return _run(_file_spec(stem, path))
    _model_dir = folder
    _put_on_path(folder, os.path.dirname(folder))
    package = _import_package(folder)
    module = _run(_file_spec("{}.{}".format(package.__name__, stem), path))
    setattr(package, stem, module)
    return module


_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def _put_on_path(*folders: str) -> None:
    """Not kept: the folders of our source tree, which an editable install puts behind site-packages. Installed as a
    wheel we lie in site-packages itself, which is kept."""
    ours = [entry for entry in (_ROOT, os.path.join(_ROOT, "stub", "api")) if not _has_packages(entry)]
    others = [entry for entry in sys.path if entry not in folders]
    at = next((index for index, entry in enumerate(others) if _has_packages(entry)), len(others))
    sys.path[:] = others[:at] + [*folders] + [entry for entry in others[at:] if entry not in ours]


def _has_packages(entry: str) -> bool:
    return os.path.basename(entry.rstrip(os.sep)) in ("site-packages", "dist-packages")


_STANDARD = frozenset(getattr(sys, "stdlib_module_names", sys.builtin_module_names))  # all of them from 3.10 on


def _warn_of_taken_names(folder: str) -> None:
    """Modules beside the model that ``import`` does not find: the standard library comes first, and so does what has
    been imported before the model, its copy of triton_python_backend_utils.py among it."""
    for name in sorted(_module_names(folder)):
        loaded = getattr(sys.modules.get(name), "__file__", None) or ""
        if (name in _STANDARD or loaded) and not loaded.startswith(os.path.join(folder, "")):
            logger.write(
                "W", __file__, 0, "the module '{}' beside the model is not used: its name is taken".format(name)
            )


def _module_names(folder: str) -> Iterator[str]:
    for entry in os.listdir(folder):
        name, extension = os.path.splitext(entry)
        if extension == ".py" or os.path.isfile(os.path.join(folder, entry, "__init__.py")):
            yield name


def _import_package(version_dir: str) -> ModuleType:
    """The version folder as a package, with or without ``__init__.py``; its name need not be an identifier."""
    name = os.path.basename(version_dir)
    init = os.path.join(version_dir, "__init__.py")
    spec = _file_spec(name, init) if os.path.isfile(init) else ModuleSpec(name, None, is_package=True)
    spec.submodule_search_locations = [version_dir]
    return _run(spec)


def _file_spec(name: str, path: str) -> ModuleSpec:
    spec = spec_from_file_location(name, path, loader=SourceFileLoader(name, path))
    assert spec is not None  # a loader was given
    return spec


def _run(spec: ModuleSpec) -> ModuleType:
    module = module_from_spec(spec)
    sys.modules[spec.name] = module
    if spec.loader is not None:
        spec.loader.exec_module(module)
    return module
