"""The six wheels: what is in them, and that each works alone in a new environment."""

import email
import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from datetime import date
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from replay.serving import serving

from reference_server.checking import command as check_command
from tools import release

ROOT = Path(__file__).resolve().parents[2]
SOURCES = {
    "ge_runtime": ROOT / "plugin",
    "ascend_simulator": ROOT / "simulator",
    "reference_server": ROOT,
    "triton_replay": ROOT / "replay",
    "reference_server_in_process": ROOT / "in_process",
    "triton_check": ROOT / "check",
}
PACKAGES = list(SOURCES)
VERSION = "0.1.0"
#: The packages in a wheel.
HELD = {
    "ge_runtime": ["ge_runtime"],
    "ascend_simulator": ["ascend_simulator"],
    "reference_server": ["reference_server", "triton_python_backend_utils"],
    "triton_replay": ["triton_replay"],
    "reference_server_in_process": ["tritonserver", "tritonfrontend"],
    "triton_check": ["triton_check"],
}
#: The wheel that has its packages in a folder, which a .pth file appends to `sys.path`.
IN_FOLDER = "reference_server_in_process"
#: The one module that is compiled here: Cython translates each before it calls the compiler.
COMPILED = "core/byte_strings"
COMPILER = (sysconfig.get_config_var("CC") or "cc").split()[0]
#: Builds a wheel as pip does, without an environment: what the builds require is here already.
#: Whether they name all of it is seen whenever `make` installs them.
BUILD = "import sys; from setuptools.build_meta import build_wheel; build_wheel(sys.argv[1])"
#: The command that the simulator's environment puts on PATH.
ATC = "ascend_simulator/site/bin/atc"

# Imports all of a package and prints which modules that brought in; what is there for a program
# that an extra installs is left out.
IMPORT_ALL = """
import importlib, pkgutil, sys
package = importlib.import_module(sys.argv[1])
for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
    # `backend.model` is a model.py, which only servers import.
    entries = (".__main__", ".pytest_plugin", ".backend.model")
    if not module.name.endswith(entries) and ".ray" not in module.name:
        importlib.import_module(module.name)
print(*sys.modules)
"""


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sources, where one module is to be compiled.

    setuptools leaves a build/ beside them, and the next wheel would take up what lies there.
    """
    copy, *_ = release.copied(tmp_path_factory.mktemp("packaging") / "source")
    for types in {*copy.glob("*/*/*.pxd")} - {*copy.glob(f"*/{COMPILED}.pxd")}:
        types.unlink()
    return copy


@pytest.fixture(scope="module")
def wheels(copy: Path) -> dict[str, Path]:
    for project in release.PROJECTS:
        folder = copy / project.relative_to(ROOT)
        # How quick the compiled module is is not looked at here.
        run(sys.executable, "-c", BUILD, copy.parent, cwd=folder, CFLAGS="-O0")
    prefixes = {
        name: f"triton_{name}" if name.startswith("reference") else name for name in PACKAGES
    }
    return {name: next(copy.parent.glob(f"{prefix}-*.whl")) for name, prefix in prefixes.items()}


@pytest.mark.slow
def test_an_index_would_take_the_wheels(wheels):
    told = run(sys.executable, "-m", "twine", "--no-color", "check", "--strict", *wheels.values())
    assert told.count("PASSED") == len(PACKAGES)


def test_all_places_say_the_same_version():
    assert set(release.versions().values()) == {VERSION}


def test_a_new_version_is_written_to_all_places(tmp_path, monkeypatch):
    for file in release.versions():
        copy = tmp_path / file.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, copy)
    places = [(tmp_path / file.relative_to(ROOT), sought) for file, sought in release._PLACES]
    monkeypatch.setattr(release, "_PLACES", places)
    monkeypatch.setattr(release, "CHANGELOG", tmp_path / "CHANGELOG.md")
    release.set_version("0.2.0rc1", date(2027, 1, 2))
    assert set(release.versions().values()) == {"0.2.0rc1"}
    assert "## 0.2.0rc1 - 2027-01-02\n" in (tmp_path / "CHANGELOG.md").read_text()
    with pytest.raises(ValueError, match="found version 'next', expected"):
        release.set_version("next", date(2027, 1, 2))


def test_the_page_of_releases_has_the_table_of_what_is_declared():
    assert release.table() in (ROOT / "CONTRIBUTING.md").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("package", PACKAGES)
def test_wheel_holds_the_package_and_nothing_else(copy, wheels, package):
    source = copy / SOURCES[package].relative_to(ROOT)
    held = HELD[package]
    kinds = ("*.py", "*.pxd", "*.html", "*.binpb", "*.pbtxt")
    files = (file for name in held for kind in kinds for file in (source / name).rglob(kind))
    expected = {str(file.relative_to(source)) for file in files}
    with zipfile.ZipFile(wheels[package]) as wheel:
        found = {name for name in wheel.namelist() if ".dist-info/" not in name}
    if package == IN_FOLDER:
        assert f"{package}.pth" in found
        found = {name.removeprefix(f"{package}/") for name in found - {f"{package}.pth"}}
    if package == "triton_check":
        # The server's modules, of which another test uses those that it needs, and the schema.
        copied = {name for name in found if name.startswith("triton_check/packages/")}
        assert {(ROOT / name.split("/", 2)[2]).is_file() for name in copied} == {True}
        assert found == expected | copied | {"triton_check/model_config.binpb"}
        return
    commands = {ATC} & {f"{package}/site/bin/atc" for package in held}
    compiled = set()
    if package == "reference_server" and shutil.which(COMPILER):
        compiled = {f"{package}/{COMPILED}{sysconfig.get_config_var('EXT_SUFFIX')}"}
    assert found == expected | {f"{name}/py.typed" for name in held} | commands | compiled


@pytest.mark.slow
def test_without_a_compiler_nothing_is_compiled_and_nothing_fails(tmp_path):
    for file in ("setup.py", "pyproject.toml", *ROOT.glob(f"reference_server/{COMPILED}.p*")):
        target = tmp_path / (ROOT / file).relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / file, target)
    run(sys.executable, "setup.py", "-q", "build_ext", "-i", cwd=tmp_path, CC="no-such-compiler")
    assert not [*tmp_path.rglob("*.so")]


@pytest.mark.slow
@pytest.mark.parametrize("package", PACKAGES)
def test_metadata_names_licence_and_oldest_python(wheels, package):
    with zipfile.ZipFile(wheels[package]) as wheel:
        (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = email.message_from_bytes(wheel.read(name))
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Requires-Python"] == ">=3.10"
    # An index shows it without the repository, so relative links would lead nowhere.
    description = metadata.get_payload()
    assert description.startswith(f"# {metadata['Name']}\n")
    assert not re.findall(r"\]\((?!https://)", description)


@pytest.mark.slow
def test_the_simulators_command_can_be_run(wheels):
    with zipfile.ZipFile(wheels["ascend_simulator"]) as wheel:
        assert wheel.getinfo(ATC).external_attr >> 16 & 0o111 == 0o111


@pytest.mark.slow
def test_ge_runtime_imports_where_only_numpy_is(wheels, tmp_path):
    python = new_environment(tmp_path)
    install(python, wheels["ge_runtime"], "numpy", declared=False)
    import_all(python, "ge_runtime")
    assert run(python.with_name("ge-runtime"), "--version") == f"ge-runtime {VERSION}\n"


@pytest.mark.slow
def test_ascend_simulator_stands_in_for_acl_with_what_its_wheel_asks_for(wheels, tmp_path):
    python = new_environment(tmp_path)
    install(python, wheels["ascend_simulator"])
    import_all(python, "ascend_simulator")
    command = python.with_name("ascend-simulator")
    assert run(command, "--version") == f"ascend-simulator {VERSION}\n"
    ask = "import acl; acl.init(); print(acl.get_soc_name())"
    line = f"""eval "$({command} env)" && {python} -c '{ask}' && atc --help"""
    name, *usage = run("/bin/sh", "-c", line).splitlines()
    assert name == "AscendSimulator"
    assert "--soc_version" in "\n".join(usage)

    leaves = """import acl
acl.init(), acl.rt.set_device(0)
try:
    acl.media.dvpp_create_channel(acl.media.dvpp_create_channel_desc())
except ImportError as error:
    print(error)"""
    line = f"""eval "$({command} env --exit-code 9)" && {python} -c '{leaves}'; echo $?"""
    assert run("/bin/sh", "-c", line).splitlines() == [
        'acl.media: Pillow is missing: pip install "ascend-simulator[media]"',
        "9",
    ]
    # Where pytest is installed as well, it has the fixture.
    link(python, ["pytest"])
    test = tmp_path / "test_it.py"
    test.write_text("def test_it(ascend_card):\n    ascend_card.rt.free(64)\n")
    command = (python, "-m", "pytest", "-q", "-p", "no:cacheprovider", test)
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "SimulatorViolation: [process.not-initialised]" in done.stdout


@pytest.mark.slow
def test_reference_server_runs_with_what_its_wheel_asks_for(wheels, tmp_path):
    python = new_environment(tmp_path)
    install(python, wheels["reference_server"])
    import_all(python, "reference_server")
    import_all(python, "triton_python_backend_utils")
    usage = run(python.with_name("reference-server"), "--help")
    assert "--model-repository" in usage
    assert f"reference-server {VERSION} " in run(python.with_name("reference-server"), "--version")


CHECK = """
import sys, triton_check
sys.argv[1:] = ["FOLDER"]
code = triton_check.main()
loaded = {name.partition(".")[0] for name in sys.modules}
print(code, sorted(loaded & {"grpc", "hpack", "httptools", "uvloop"}))
"""


@pytest.mark.slow
def test_triton_check_runs_without_the_libraries_of_the_server(
    wheels, tmp_path, capsys, monkeypatch
):
    python = new_environment(tmp_path)
    install(python, wheels["triton_check"])
    faulty = ROOT / "examples" / "faulty_models"
    monkeypatch.chdir("/")  # as `run` does, since paths are relative to it
    assert check_command.main([str(faulty)]) == 1
    expected = capsys.readouterr().out + "1 []\n"
    assert run(python, "-I", "-c", CHECK.replace("FOLDER", str(faulty))) == expected
    command = python.with_name("triton-check")
    assert run(command, "--version") == f"triton-check {VERSION}\n"


STEPS_ASIDE = """
import tritonserver, tritonfrontend
print(tritonserver.__name__, tritonfrontend.KServeHttp.__name__, hasattr(tritonserver, "Server"))
"""


@pytest.mark.slow
def test_in_process_api_steps_aside_for_the_real_packages(wheels, tmp_path):
    python = new_environment(tmp_path)
    pip("install", "--no-deps", wheels["reference_server"], python=python)
    install(python, wheels[IN_FOLDER], "triton-reference-server")
    import_all(python, "tritonserver")
    assert run(python, "-I", "-c", STEPS_ASIDE).split() == ["tritonserver", "KServeHttp", "True"]
    # As if NVIDIA's package were installed, before or after.
    real = site_packages(python) / "tritonserver"
    real.mkdir()
    (real / "__init__.py").write_text("real = True\n")
    ask = "import tritonserver; print(tritonserver.real)"
    assert run(python, "-I", "-c", ask) == "True\n"


@pytest.mark.slow
def test_triton_replay_runs_with_what_its_wheel_asks_for(wheels, tmp_path):
    python = new_environment(tmp_path)
    install(python, wheels["triton_replay"])
    loaded = import_all(python, "triton_replay")
    assert not loaded & {"ge_runtime", "reference_server"}
    command = python.with_name("triton-replay")
    assert run(command, "--version") == f"triton-replay {VERSION}\n"
    listed = re.findall(r"^    (\w+)\s", run(command, "--help"), re.MULTILINE)
    used = use_each_command(python, tmp_path)
    assert used | {"load"} == set(listed)  # which wants statistics of a server
    assert "--concurrency-range" in run(command, "load", "--help")


USE = """
import json, sys
from triton_replay.__main__ import main
print(json.dumps([main(words) for words in json.loads(sys.argv[1])]))
"""


def use_each_command(python: Path, folder: Path) -> set[str]:
    """Run them on a load that is made up; those that were run."""
    made, a, b = (folder / name for name in ("made.trc", "a.trc", "b.trc"))
    with serving() as server:
        to = f"--server={server}"
        lines: list[tuple[str | Path, ...]] = [
            ("generate", "--output", made, "--model=m", "--input=x:FP32:1", "--seconds=1"),
            ("replay", made, to, "--output", a, "--speed=max"),
            ("replay", made, to, "--output", b, "--speed=max"),
            ("compare", a, b, "--html", folder / "page.html"),
            ("ab", made, f"--a={server}", f"--b={server}"),
            ("export", a, "--output", folder / "loads"),
            ("export", a, "--output", folder / "tests", "--pytest"),
            ("show", a),
            (
                *("shadow", to, f"--b={server}", "--listen=127.0.0.1:0"),
                *("--output", folder / "shadow", "--seconds=0"),
            ),
            ("record", to, "--listen=127.0.0.1:0", "--output", folder / "c.trc", "--seconds=0"),
        ]
        # What answers everything alike is no server of the protocol.
        lines.append(("conformance", to, "--model=m"))
        words = json.dumps([list(map(str, line)) for line in lines])
        *_, codes = run(python, "-I", "-c", USE, words).splitlines()
    assert json.loads(codes) == [0] * (len(lines) - 1) + [1]
    return {str(line[0]) for line in lines}


def test_ge_runtime_leaves_what_it_can_do_without():
    """Here all of them are installed, so that an import would succeed."""
    loaded = import_all(Path(sys.executable), "ge_runtime")
    assert "numpy" in loaded
    assert not loaded & {"onnxruntime", "torch", "tritonclient", "reference_server"}


def new_environment(directory: Path) -> Path:
    """Make an empty environment and give its Python."""
    venv.create(directory / "venv", symlinks=True)
    return directory / "venv" / "bin" / "python"


def install(python: Path, wheel: Path, *others: str, declared: bool = True) -> None:
    """Install a wheel, and link the packages that it requires if they are `declared`."""
    pip("install", "--no-deps", wheel, python=python)
    requires: list[str] = []
    if declared:
        (found,) = importlib.metadata.distributions(
            name=wheel.name.split("-")[0], path=[str(site_packages(python))]
        )
        requires = found.requires or []
    link(python, [*requires, *others])


def link(python: Path, requirements: list[str]) -> None:
    """Link packages of this environment, with all that they require, into the one of `python`.

    pip would unpack them in some seconds each. `make` installs what is declared with pip.
    """
    target = site_packages(python)
    waiting, done = [Requirement(text) for text in requirements], set()
    while waiting:
        asked = waiting.pop()
        wanted = [{"extra": extra} for extra in ("", *asked.extras)]
        if asked.marker and not asked.marker.evaluate({"extra": ""}):
            continue
        found = importlib.metadata.distribution(asked.name)
        assert asked.specifier.contains(found.version, prereleases=True), asked
        for each in map(Requirement, found.requires or []):
            if not each.marker or any(each.marker.evaluate(extra) for extra in wanted):
                each.marker = None
                if (key := (each.name, *sorted(each.extras))) not in done:
                    done.add(key)
                    waiting.append(each)
        top = {file.parts[0] for file in found.files or []} - {"..", "__pycache__"}
        for name in top:
            if not (target / name).exists():
                (target / name).symlink_to(found.locate_file(name))


def site_packages(python: Path) -> Path:
    """Return the folder of an environment's packages."""
    (folder,) = python.parents[1].glob("lib/python*/site-packages")
    return folder


def import_all(python: Path, package: str) -> set[str]:
    """Import every module of `package`; give all that is loaded then."""
    return set(run(python, "-I", "-c", IMPORT_ALL, package).split())


def pip(*arguments: str | Path, python: Path | None = None, **environment: str) -> None:
    """Run this Python's pip, on the environment of `python` if one is given."""
    target = ("--python", python) if python else ()
    command = ("-m", "pip", "--disable-pip-version-check", *target, *arguments)
    run(sys.executable, *command, **environment)


def run(*command: str | Path, cwd: Path = Path("/"), **environment: str) -> str:
    """Run a command away from the sources; its output, or a failure that shows it."""
    result = subprocess.run(
        command,
        cwd=cwd,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout
