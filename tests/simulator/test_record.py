"""Compare trust.md, contract.md and docs/ascend.md with the code and the simulator."""

import ast
import re
from functools import cache
from pathlib import Path

import ascend_simulator
import ascend_simulator.interface.exports  # declares every rule and function
import ge_runtime
from ascend_simulator import RULES
from ascend_simulator.calls import EXPORTED
from ge_runtime.cli.probe_device.checks import CHECKS as DEVICE_CHECKS
from ge_runtime.npu.driver.cann_values import FailureKind, failure_kind

ROOT = Path(__file__).parents[2]
PAGE = "".join((ROOT / page).read_text() for page in ("docs/ascend.md", "tests/simulator/trust.md"))
CONTRACT = (ROOT / "tests" / "simulator" / "contract.md").read_text()
RUNTIME = Path(ge_runtime.__file__).parent
PYACL = sorted((RUNTIME / "npu" / "driver").glob("pyacl*.py"))
DOCTOR = RUNTIME / "cli" / "doctor" / "machine.py"
SIMULATOR = Path(ascend_simulator.__file__).parent
TESTS = ROOT / "tests" / "simulator"
RUNTIME_TESTS = ROOT / "tests" / "runtime"

SHAPES = {
    "ret": {"status"},
    "(value, ret)": {"value", "echo", "dictionary", "listing"},
    "(a, b, ret)": {"pair"},
    "value": {"bare"},
}
CHECKS = {"ret": "_status", "(value, ret)": "_value", "(a, b, ret)": "_status"}
"""The method of the checker that an answer of this shape goes through."""


def rows(heading):
    """Return the cells of the first table below a heading."""
    section = PAGE.split(f"## {heading}\n")[-1]
    lines = re.search(r"^\|.*?(?=^[^|]|\Z)", section, re.MULTILINE | re.DOTALL)[0].splitlines()
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[2:]]


def functions():
    """Function -> result, source, rules, tests."""
    section = PAGE.split("| Function | Answer |")[1].split("\n\n")[0]
    found = [line.strip("|").split("|") for line in section.splitlines()[2:]]
    return {cells[0].strip(" `"): [cell.strip() for cell in cells[1:]] for cells in found}


def quoted(cell):
    return re.findall(r"`([^`]+)`", cell)


RECORD = functions()
RELEASING = {
    *("rt.synchronize_stream", "rt.synchronize_stream_with_timeout", "rt.synchronize_device"),
    *("rt.synchronize_event", "rt.synchronize_event_with_timeout", "rt.stream_wait_event"),
    *("rt.process_report", "util.start_thread", "util.stop_thread"),
}
"""Functions during which the binding releases the GIL."""


def called_to_serve():
    """The functions that the runtime calls."""
    return frozenset().union(*(called(file.read_text()) for file in PYACL))


@cache
def called(source):
    """Return the functions of `acl` that this code calls, as attributes of the module or a part."""
    prefixes = {
        "acl": "",
        "module": "",
        "rt": "rt.",
        "mdl": "mdl.",
        "util": "util.",
        "prof": "prof.",
        "media": "media.",
    }
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name | ast.Attribute):
            holder = node.value.id if isinstance(node.value, ast.Name) else node.value.attr
            prefix = prefixes.get(holder.removeprefix("_"))
            if prefix is not None and node.attr not in prefixes and not node.attr.startswith("_"):
                found.add(prefix + node.attr)
    return found


def doctors_question():
    """The functions of `acl` that doctor's process calls."""
    for node in ast.walk(ast.parse(DOCTOR.read_text())):
        if isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if isinstance(key, ast.Constant) and key.value == "acl":
                    return value.value
    raise AssertionError("doctor asks acl nothing")


@cache
def sources():
    """Return the text of the simulator's modules."""
    return "".join(file.read_text() for file in SIMULATOR.rglob("*.py"))


@cache
def decorated_shapes():
    """Function of the simulator -> the name of its call shape."""
    found = re.findall(r'^@(\w+)\(\s*"([\w.]+)"', sources(), re.MULTILINE)
    return {name: shape for shape, name in found}


@cache
def checked():
    """Function -> the method of the checker that receives its result."""
    found = {}
    for node in (node for file in PYACL for node in ast.walk(ast.parse(file.read_text()))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            for argument in node.args[:1]:
                if isinstance(argument, ast.Constant) and str(argument.value).startswith("acl."):
                    found[argument.value.removeprefix("acl.")] = node.func.attr
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
            name = str(node.value.value)
            if name.startswith("acl."):
                found[name.removeprefix("acl.")] = "_value"
    return found


def test_the_record_has_every_function_that_is_called_and_no_other():
    assert set(RECORD) == called_to_serve() | called(doctors_question())


def test_nothing_else_of_the_runtime_calls_pyacl():
    importing = {
        file
        for file in RUNTIME.rglob("*.py")
        if re.search(r"import_\w+\(\"acl\"\)|^\s*(?:import|from) acl\b", file.read_text(), re.M)
    }
    assert {file.relative_to(RUNTIME).as_posix() for file in importing} == {
        "npu/driver/pyacl.py",
        "cli/probe_device/__main__.py",
    }
    calls = re.compile(r'\(\s*f?"acl\.\w')
    naming = {file for file in RUNTIME.rglob("*.py") if calls.search(file.read_text())}
    assert naming == {*PYACL}


def test_a_function_answers_in_the_simulator_as_the_record_says():
    for function, (answer, *_) in RECORD.items():
        assert function in EXPORTED
        if shape := decorated_shapes().get(function):  # others are made from tables
            assert shape in SHAPES[quoted(answer)[0]], function


def test_every_return_code_goes_through_the_checker():
    for function in RECORD.keys() & called_to_serve():
        shape = quoted(RECORD[function][0])[0]
        if shape != "value":
            expected = {(CHECKS[shape], shape), ("_dims", "(value, ret)")}
            assert (checked()[function], shape) in expected, function


def test_the_page_has_every_question_as_the_command_asks_it():
    shown = rows("Questions for a card")
    assert len(shown) == len(DEVICE_CHECKS)
    for cells, check in zip(shown, DEVICE_CHECKS, strict=True):
        risk = f", *risky*: {check.risk}" if check.risk else ""
        probe = f"`{check.probe.__name__}`{risk}"
        texts = [check.question, check.assumed, check.otherwise]
        assert cells == [str(check.number), *texts, probe]


def test_the_page_has_every_class_of_failure():
    table = {cells[0]: cells[1] for cells in rows("Errors, classes and cures")}
    assert set(table) == {kind.value for kind in FailureKind}
    for kind in FailureKind:
        assert {failure_kind(int(code)) for code in table[kind.value].split(", ")} == {kind}


def test_each_function_is_on_one_of_two_pages():
    table = CONTRACT.split("| Functions | Tests |")[1].split("\n\n")[0]
    named = [name for line in table.splitlines()[2:] for name in quoted(line.split("|")[1])]
    assert sorted(named) == sorted(set(EXPORTED) - set(RECORD))


def test_the_pages_name_every_rule_and_existing_test_files():
    assert set(RULES) <= set(quoted(CONTRACT))
    for file in re.findall(r"`([\w/]*test_\w+\.py)`", PAGE + CONTRACT):
        assert any((folder / file).is_file() for folder in (TESTS, RUNTIME_TESTS, ROOT)), file


def test_only_these_functions_release_pythons_lock():
    assert set(re.findall(r'"([\w.]+)"[^@"]*?releases_gil=True', sources())) == RELEASING
