"""The rules of the tree that no linter knows: who imports whom, how large things get, what is never used."""

import ast
import re
import shutil
import statistics
import subprocess
import sys
import tokenize
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from protocol import messages, services

ROOT = Path(__file__).resolve().parent.parent
LEAVES = {"protocol", "shm", "metrics"}
MAY_IMPORT = {  # besides itself
    "protocol": set(),
    "shm": set(),
    "metrics": set(),
    "broker": LEAVES,
    "gateway": LEAVES,
    "stub": set(),
    "tensorbus": {*LEAVES, "broker", "gateway", "stub"},
}
PACKAGES = sorted(MAY_IMPORT)
STUB_DOOR = "stub/shared.py"
LOADERS = ("import_module", "exec_module", "spec_from_file_location", "run_path", "run_module")
DATA_AS_CODE = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "marshal", "shelve", "jsonpickle"}
LOADS_CODE_BY_NAME = {
    "stub/user_model.py",  # the user's model
    "protocol/kserve.py",  # generated modules of tritonclient, without the client around them
    "tests/conformance/author_cases.py",  # the probes of a model among the tests
}
VAGUE_NAMES = {"utils", "util", "misc", "common", "helpers", "helper", "manager"}


class Import(NamedTuple):
    file: str
    line: int
    module: str  # absolute; ``_tensorbus_app.`` taken off
    relative: bool

    def __str__(self):
        return f"{self.file}:{self.line} imports {self.module}"


@cache
def nodes(path):
    """Those of the whole tree; each file is walked once for all rules."""
    return list(ast.walk(ast.parse(path.read_text(), str(path))))


@cache
def name_of(path):
    return path.relative_to(ROOT).as_posix()


def source_files():
    return sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


def all_files():
    """Ours and our tests'; the models among the tests stand for the users', who are free."""
    others = [
        path for folder in ("tests", "benchmarks", "examples", "deploy") for path in (ROOT / folder).rglob("*.py")
    ]
    return source_files() + sorted(path for path in others if "tests/models" not in name_of(path))


def module_of(path):
    parts = list(path.relative_to(ROOT).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(path):
    """Every import in the file, wherever it stands: under TYPE_CHECKING and inside functions too."""
    package = list(path.relative_to(ROOT).parts[:-1])
    for node in nodes(path):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(name_of(path), node.lineno, alias.name.removeprefix("_tensorbus_app."), False)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            module = ".".join(filter(None, [base, node.module])).removeprefix("_tensorbus_app").lstrip(".")
            for alias in node.names:
                # "from package import module" imports the module, "from module import name" the module before it.
                inner = f"{module}.{alias.name}".lstrip(".")
                target = inner if inner in modules() or inner in PACKAGES or not module else module
                yield Import(name_of(path), node.lineno, target, bool(node.level))
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module") and literal(node):
            yield Import(name_of(path), node.lineno, literal(node), False)


def literal(call):
    """The first argument, if it is written out."""
    return call.args[0].value if call.args and isinstance(call.args[0], ast.Constant) else None


@cache
def all_imports():
    return [found for path in source_files() for found in imports_of(path)]


@cache
def modules():
    return {module_of(path): path for path in source_files()}


def top(dotted):
    return dotted.partition(".")[0]


def listed(found):
    return "\n  ".join(["", *map(str, found)])


# --- imports ----------------------------------------------------------------------------------------------------


def test_packages_import_only_those_below_them():
    wrong = []
    for found in all_imports():
        package, target = found.file.partition("/")[0], top(found.module)
        allowed = MAY_IMPORT[package] | {package} | ({"protocol", "shm"} if found.file == STUB_DOOR else set())
        if target in MAY_IMPORT and target not in allowed:
            wrong.append(found)
    assert not wrong, listed(wrong)


def test_the_broker_needs_nothing_of_what_is_elsewhere():
    """broker/remote/ stands on the rest of the broker, which serves in one process without it."""
    wrong = [
        found
        for found in all_imports()
        if found.module.startswith("broker.remote") and re.match(r"broker/(?!remote/)", found.file)
    ]
    assert not wrong, listed(wrong)


def test_shm_and_stub_import_themselves_relatively():
    """In a stub process they are known by another name, and the plain one may be the user's."""
    wrong = []
    for path in source_files():
        package = path.relative_to(ROOT).parts[0]
        if package not in ("shm", "stub"):
            continue
        for node in nodes(path):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) and not node.level else []
            wrong += [f"{name_of(path)}:{node.lineno} imports {name}" for name in names if top(name) == package]
    assert not wrong, listed(wrong)


def test_no_module_imports_itself_by_way_of_others():
    graph = {module: set() for module in modules()}
    for path in source_files():
        here = module_of(path)
        graph[here] = {found.module for found in imports_of(path) if found.module in graph and found.module != here}
    cycle = find_cycle(graph)
    assert not cycle, " imports ".join(cycle)  # one of them; there may be more


def find_cycle(graph):
    """Take away what imports nothing that is left, until nothing changes; what stays holds every cycle."""
    left = dict(graph)
    while True:
        free = [module for module, targets in left.items() if not targets & left.keys()]
        if not free:
            break
        for module in free:
            del left[module]
    walk = sorted(left)[:1]
    while walk:
        after = min(graph[walk[-1]] & left.keys())
        if after in walk:
            return [*walk[walk.index(after) :], after]
        walk.append(after)
    return []


def test_a_cycle_is_found():
    graph = {"a": {"b"}, "b": {"c", "d"}, "c": {"b"}, "d": set()}
    assert find_cycle(graph) == ["b", "c", "b"]
    assert find_cycle({"a": {"b"}, "b": set()}) == []


def imports_name(path, name):
    """Whether a module of this name is imported, from wherever."""
    imported = set()
    for node in nodes(path):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            imported.update(part for alias in node.names for part in alias.name.split("."))
        if isinstance(node, ast.ImportFrom) and node.module:
            imported.update(node.module.split("."))
    return name in imported


@pytest.mark.parametrize(
    "name, known_to",
    [
        ("zmq", {f"tensorbus/{name}.py" for name in ("listener", "dialer", "zmq_sockets", "curve")}),  # TCP, its keys
        ("zmtp", {"broker/router.py", "stub/channel.py", STUB_DOOR}),  # the two ends of the bus, and the way there
    ],
)
def test_few_files_know_the_wire(name, known_to):
    assert {name_of(path) for path in source_files() if imports_name(path, name)} == known_to


def test_numpy_stays_in_the_stub_and_in_the_tensor_files():
    wrong = [
        found
        for found in all_imports()
        if top(found.module) in ("numpy", "ml_dtypes")
        and not found.file.startswith("stub/")
        and not re.fullmatch(r"(gateway|tensorbus)/\w*tensors\w*\.py", found.file)
    ]
    assert not wrong, listed(wrong)


SERVER_SIDE = {"protocol/codec.py", "stub/launcher.py"}  # run by the server's interpreter alone
BACKENDS_NEED = {"onnxruntime", "torch"}  # the user's; the only ones that our backends may import
STUB_NEEDS = {"msgpack", "numpy", "setproctitle", "msgspec", "cupy"}  # the last three are optional


@pytest.mark.parametrize(
    "package, allowed",
    [("protocol", set()), ("shm", set()), ("stub", STUB_NEEDS), ("metrics", {"prometheus_client"})],
)
def test_leaves_and_stubs_need_nothing_but_what_is_listed(package, allowed):
    known = {*sys.stdlib_module_names, *PACKAGES, *allowed, "_tensorbus_app", "triton_python_backend_utils"}

    def neighbours(found):
        return {path.stem for path in (ROOT / found.file).parent.glob("*.py")} | BACKENDS_NEED

    wrong = [
        found
        for found in all_imports()
        if found.file.startswith(package + "/")
        and found.file not in SERVER_SIDE
        and top(found.module) not in known
        and not (found.file.startswith("stub/backends/") and top(found.module) in neighbours(found))
        and not found.relative
    ]
    assert not wrong, listed(wrong)


@pytest.mark.parametrize("package", ["protocol", "shm", "stub"])
def test_what_runs_in_a_foreign_interpreter_is_python_3_9(package):
    for path in (ROOT / package).rglob("*.py"):
        tree = ast.parse(path.read_text(), name_of(path), feature_version=(3, 9))
        late = any(isinstance(node, ast.ImportFrom) and node.module == "__future__" for node in tree.body)
        unions = [text for node in ast.walk(tree) for text in annotations_of(node) if " | " in text]
        assert late or not unions, f"{name_of(path)} lacks `from __future__ import annotations`"


def test_the_leaves_load_in_the_oldest_python():
    names = [
        name_of(path)[:-3].replace("/", ".") for package in ("protocol", "shm") for path in ROOT.glob(f"{package}/*.py")
    ]
    code = "import " + ", ".join(sorted(name for name in names if "__" not in name and name != "protocol.codec"))
    python = shutil.which("python3.9")
    if not python or subprocess.run([python, "-c", ""], capture_output=True).returncode:
        pytest.skip("there is no Python 3.9 here")
    done = subprocess.run([python, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def annotations_of(node):
    if isinstance(node, (ast.AnnAssign, ast.arg)) and node.annotation:
        yield ast.unparse(node.annotation)
    if isinstance(node, ast.FunctionDef) and node.returns:
        yield ast.unparse(node.returns)


# --- sizes and names --------------------------------------------------------------------------------------------


def function_lengths(path):
    for node in nodes(path):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node.end_lineno - node.lineno + 1, f"{name_of(path)}:{node.lineno} {node.name}"


def test_no_function_is_longer_than_60_lines():
    long = [(length, where) for path in all_files() for length, where in function_lengths(path) if length > 60]
    assert not long, listed(sorted(long, reverse=True))


def test_half_of_the_functions_have_12_lines_at_most():
    assert statistics.median(length for path in source_files() for length, _ in function_lengths(path)) <= 12


def test_no_file_is_longer_than_600_lines():
    lengths = {name_of(path): len(path.read_text().splitlines()) for path in all_files()}
    long = {name: length for name, length in lengths.items() if length > 600}
    assert not long, listed(long.items())


def test_files_are_named_for_what_they_hold():
    vague = [name_of(path) for path in all_files() if path.stem in VAGUE_NAMES]
    assert not vague, listed(vague)


def test_tests_are_no_packages():
    found = [name_of(path) for path in (ROOT / "tests").rglob("__init__.py") if "tests/models" not in name_of(path)]
    assert not found, listed(found)


# --- what is never used -----------------------------------------------------------------------------------------


def dangers_of(path):
    for node in nodes(path):
        where = f"{name_of(path)}:{getattr(node, 'lineno', 0)}"
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            if called in ("eval", "exec", "compile", "__import__", "os.system", "os.popen", "subprocess.getoutput"):
                yield f"{where} calls {called}"
            if called.endswith(LOADERS) and not literal(node) and name_of(path) not in LOADS_CODE_BY_NAME:
                yield f"{where} calls {called} with a name that is not written there"
            for keyword in node.keywords:
                if keyword.arg in ("shell", "allow_pickle") and ast.unparse(keyword.value) != "False":
                    yield f"{where} passes {keyword.arg}"
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        for name in names:
            if top(name) in DATA_AS_CODE:
                yield f"{where} imports {name}"


def test_data_never_becomes_code():
    found = [danger for path in all_files() for danger in dangers_of(path)]
    assert not found, listed(found)


# --- the tables that the documents repeat -----------------------------------------------------------------------


def test_the_architecture_page_shows_the_messages_as_they_are():
    ways = (("broker, stub", messages.TO_STUB), ("stub, broker", messages.TO_BROKER))
    expected = {
        f"| {kind} | {message.__name__} | {way} | {', '.join(message._fields)} |"
        for way, table in ways
        for kind, message in table.items()
    }
    of_services = {
        (kind, message.__name__, ", ".join(message._fields), from_broker)
        for from_broker, table in ((False, services.FROM_SERVICE), (True, services.TO_SERVICE))
        for kind, message in table.items()
    }
    shown = re.findall(r"^\| [A-Z] \|.*$", (ROOT / "ARCHITECTURE.md").read_text(), re.MULTILINE)
    rows = [line.strip("| ").split(" | ") for line in shown if line not in expected]
    assert expected <= set(shown)
    assert {(kind, name, fields, way.startswith("broker")) for kind, name, way, fields in rows} == of_services
    assert len(shown) == len(expected) + len(of_services)


FOLDERS = [*PACKAGES, "tests", "benchmarks", "examples"]
A_FILE_OF_OURS = re.compile(rf"(?<![\w/.])((?:{'|'.join(FOLDERS)})/(?:[\w-]+/)*[\w-]+\.py)\b")


def texts():
    """The documents, and what our code says in comments and strings (which hold the docstrings)."""
    for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]:
        yield name_of(path), path.read_text()
    for path in source_files():
        with path.open("rb") as file:
            tokens = list(tokenize.tokenize(file.readline))
        yield (
            name_of(path),
            "\n".join(each.string for each in tokens if each.type in (tokenize.COMMENT, tokenize.STRING)),
        )


def test_files_that_are_spoken_of_exist():
    named = [(where, name) for where, text in texts() for name in A_FILE_OF_OURS.findall(text)]
    missing = [f"{where} speaks of {name}" for where, name in named if not (ROOT / name).exists()]
    assert named and not missing, listed(missing)
