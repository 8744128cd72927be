from __future__ import annotations

import importlib.util
import json
import sys
import sysconfig
from pathlib import Path
from typing import Any, Dict

import pytest
import triton_python_backend_utils as pb_utils
from _tensorbus_app.stub import logger
from _tensorbus_app.stub.user_model import LoadError, UserModel, auto_complete

ARGS = {"model_config": '{"name": "probe"}', "model_name": "probe", "model_version": "1"}
EMPTY = "class TritonPythonModel:\n    pass\n"


def load(folder: Path, source: str, file: str = "model.py", **files: str) -> Any:
    (folder / file).write_text(source)
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    return UserModel.load(str(folder / file), ARGS).instance


def refusal(folder: Path, source: str) -> str:
    with pytest.raises(LoadError) as caught:
        load(folder, source)
    return str(caught.value)


def test_the_module_is_named_by_version_and_file(version_dir: Path) -> None:
    load(version_dir, "names = __name__, __package__, __file__\n" + EMPTY)
    assert sys.modules["1.model"].names == ("1.model", "1", str(version_dir / "model.py"))


def test_another_file_name_is_the_modules(version_dir: Path) -> None:
    load(version_dir, EMPTY, "mymodel.py")
    assert "1.mymodel" in sys.modules


def test_neighbours_are_imported_relatively_and_absolutely(version_dir: Path) -> None:
    (version_dir.parent / "above.py").write_text("V = 3\n")
    (version_dir / "pkg").mkdir()
    (version_dir / "pkg" / "__init__.py").write_text("from . import x\n")
    (version_dir / "pkg" / "x.py").write_text("V = 4\n")
    source = "from . import one\nfrom .two import V as two\nimport one as again, above, pkg\n"
    load(version_dir, source + "values = one.V, two, again.V, above.V, pkg.x.V\n" + EMPTY, one="V = 1\n", two="V = 2\n")
    assert sys.modules["1.model"].values == (1, 2, 1, 3, 4)


def test_an_init_file_of_the_version_folder_is_run(version_dir: Path) -> None:
    load(version_dir, "from . import V\n" + EMPTY, __init__="V = 5\n")
    assert sys.modules["1.model"].V == 5


def test_import_model_gives_a_second_copy(version_dir: Path) -> None:
    instance = load(
        version_dir,
        "class TritonPythonModel:\n    def __init__(self):\n        import model\n        self.other = model\n",
    )
    assert instance.other is not sys.modules["1.model"]
    assert instance.other.__name__ == "model"


def test_the_users_folders_come_between_library_and_packages(version_dir: Path) -> None:
    load(version_dir, EMPTY)
    at = sys.path.index(str(version_dir))
    assert sys.path[at + 1] == str(version_dir.parent)
    assert sys.path.index(sysconfig.get_path("stdlib")) < at < sys.path.index(sysconfig.get_path("purelib"))


@pytest.mark.parametrize("name", ["metrics", "stub", "protocol", "broker", "shm", "gateway", "utils", "tensor"])
def test_a_helper_may_have_any_name_of_ours(version_dir: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # In this process the source tree comes first on the path and some of these are imported; in a stub neither holds.
    tree = str(Path(__file__).parents[2])
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry not in (tree, ".", "")])
    monkeypatch.delitem(sys.modules, name, raising=False)
    load(version_dir, f"import {name}\nvalue = {name}.V\n" + EMPTY, **{name: "V = 'mine'\n"})
    assert sys.modules["1.model"].value == "mine"


def test_argv_is_empty(version_dir: Path) -> None:
    load(version_dir, EMPTY)
    assert sys.argv == [""]


def test_a_stray_copy_of_pb_utils_is_not_used(version_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = []
    monkeypatch.setattr(logger, "_sink", lambda *line: lines.append(line))
    load(
        version_dir,
        "import triton_python_backend_utils as u\n" + EMPTY,
        triton_python_backend_utils="raise ImportError\n",
    )
    assert sys.modules["1.model"].u is pb_utils
    assert [(line[0], line[3]) for line in lines] == [
        ("W", "the module 'triton_python_backend_utils' beside the model is not used: its name is taken")
    ]


def test_helpers_whose_names_are_taken_are_warned_of(version_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = []
    monkeypatch.setattr(logger, "_sink", lambda *line: lines.append(line[3]))
    (version_dir / "queue").mkdir()
    (version_dir / "queue" / "__init__.py").write_text("")
    (version_dir / "json").mkdir()  # no package
    load(version_dir, "import queue, numpy, helper\n" + EMPTY, numpy="", helper="")
    assert not sys.modules["1.model"].queue.__file__.startswith(str(version_dir))
    assert sys.modules["1.model"].helper.__file__.startswith(str(version_dir))
    assert [line.split("'")[1] for line in lines] == ["numpy", "queue"]


def test_initialize_gets_the_arguments(version_dir: Path) -> None:
    instance = load(
        version_dir, "class TritonPythonModel:\n    def initialize(self, args):\n        self.args = args\n"
    )
    assert instance.args == ARGS


def test_get_model_dir_is_the_files_folder(version_dir: Path) -> None:
    load(version_dir, EMPTY)
    assert pb_utils.get_model_dir() == str(version_dir)


@pytest.fixture
def backend(version_dir: Path) -> Path:
    folder = version_dir.parents[1] / "backends" / "mine"
    folder.mkdir(parents=True)
    return folder


def test_a_python_based_backend_is_a_plain_module(version_dir: Path, backend: Path) -> None:
    (backend / "beside.py").write_text("V = 7\n")
    source = "import beside\nclass TritonPythonModel:\n    names = __name__, __package__, __file__, beside.V\n"
    (backend / "model.py").write_text(source)
    model = UserModel.load(str(backend / "model.py"), ARGS, str(version_dir))
    assert model.instance.names == ("model", "", str(backend / "model.py"), 7)
    assert importlib.import_module("model") is sys.modules[type(model.instance).__module__]
    assert str(backend) in sys.path
    assert not {str(version_dir), str(version_dir.parent)} & {*sys.path}


def test_get_model_dir_of_a_python_based_backend_is_the_models(version_dir: Path, backend: Path) -> None:
    (backend / "model.py").write_text(EMPTY)
    auto_complete(str(backend / "model.py"), ARGS, str(version_dir))
    assert pb_utils.get_model_dir() == str(version_dir)


def test_a_file_below_the_version_folder_is_the_models_own(version_dir: Path) -> None:
    (version_dir / "own").mkdir()
    (version_dir / "own" / "mine.py").write_text("names = __name__\n" + EMPTY)
    model = UserModel.load(str(version_dir / "own" / "mine.py"), ARGS, str(version_dir))
    assert type(model.instance).__module__ == "own.mine"


def test_a_missing_file_is_named(version_dir: Path) -> None:
    path = str(version_dir / "model.py")
    with pytest.raises(LoadError) as caught:
        UserModel.load(path, ARGS)
    assert str(caught.value) == f"Failed to preinitialize Python stub: Python model file not found in '{path}'"


def test_a_syntax_error_has_no_frames(version_dir: Path) -> None:
    assert refusal(version_dir, "def\n") == "SyntaxError: invalid syntax (model.py, line 1)"


def test_an_error_of_the_module_has_its_frame(version_dir: Path) -> None:
    text = f"NameError: name 'x' is not defined\n\nAt:\n  {version_dir}/model.py(2): <module>\n"
    assert refusal(version_dir, "\nx\n") == text
    assert refusal(version_dir, "import no_such_module\n").startswith(
        "ModuleNotFoundError: No module named 'no_such_module'\n"
    )


def test_a_missing_class_is_an_attribute_error(version_dir: Path) -> None:
    assert refusal(version_dir, "") == "AttributeError: module '1.model' has no attribute 'TritonPythonModel'"


def test_the_class_takes_no_arguments(version_dir: Path) -> None:
    text = refusal(version_dir, "class TritonPythonModel:\n    def __init__(self, a):\n        pass\n")
    assert text.startswith("TypeError: ")
    assert "__init__() missing 1 required positional argument: 'a'" in text


@pytest.mark.parametrize(
    ("statement", "text"),
    [
        ("raise ValueError('bad thing')", "ValueError: bad thing"),
        ("import sys; sys.exit(3)", "SystemExit: 3"),
        ("lorem_ipsum", "NameError: name 'lorem_ipsum' is not defined"),
    ],
)
def test_what_initialize_raises_is_the_text(version_dir: Path, statement: str, text: str) -> None:
    source = f"class TritonPythonModel:\n    def initialize(self, args):\n        {statement}\n"
    assert refusal(version_dir, source) == f"{text}\n\nAt:\n  {version_dir}/model.py(3): initialize\n"


def test_calls_to_other_models_are_refused_in_initialize(version_dir: Path) -> None:
    source = """
import triton_python_backend_utils as pb_utils
class TritonPythonModel:
    def initialize(self, args):
        pb_utils.InferenceRequest(inputs=[], requested_output_names=[], model_name="m").exec()
"""
    text = "TritonModelException: BLS is only supported during the 'execute' function.\n\nAt:\n"
    assert refusal(version_dir, source) == f"{text}  {version_dir}/model.py(5): initialize\n"


def complete(folder: Path, body: str, config: Dict[str, Any]) -> Any:
    head = "class TritonPythonModel:\n    @staticmethod\n    def auto_complete_config(config):\n        "
    (folder / "model.py").write_text(head + body + "\n")
    return json.loads(auto_complete(str(folder / "model.py"), {"model_config": json.dumps(config)}))


def test_auto_complete_gives_the_configuration_back(version_dir: Path) -> None:
    config = {"name": "probe", "max_batch_size": 0}
    assert complete(version_dir, "config.set_max_batch_size(4); return config", config) == {
        **config,
        "max_batch_size": 4,
    }


def test_auto_complete_does_not_make_an_instance(version_dir: Path) -> None:
    (version_dir / "model.py").write_text(
        "class TritonPythonModel:\n    def __init__(self):\n        raise ValueError\n"
    )
    assert auto_complete(str(version_dir / "model.py"), ARGS) == ARGS["model_config"]


@pytest.mark.parametrize("value", ["None", "config.as_dict()", "3"])
def test_auto_complete_must_return_a_model_config(version_dir: Path, value: str) -> None:
    with pytest.raises(LoadError) as caught:
        complete(version_dir, "return " + value, {"name": "probe"})
    assert str(caught.value) == (
        "auto_complete_config function in model 'probe' must return a valid pb.ModelConfig object."
    )


def test_what_auto_complete_raises_is_the_text(version_dir: Path) -> None:
    with pytest.raises(LoadError, match=r"^NameError: name 'undefined_variable' is not defined\n\nAt:\n"):
        complete(version_dir, "undefined_variable", {"name": "probe"})


def test_the_module_is_importable_by_its_name_in_spawned_children(version_dir: Path) -> None:
    """multiprocessing pickles functions as 1.model.<name>; the child has our sys.path and nothing else."""
    load(version_dir, EMPTY)
    del sys.modules["1.model"], sys.modules["1"]
    assert importlib.util.find_spec("1.model") is not None
