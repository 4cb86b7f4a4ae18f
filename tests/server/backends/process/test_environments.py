"""Tests of models' own Python environments: finding, unpacking and checking them."""

import logging
import os
import shutil
import subprocess
import sys
import tarfile
import threading
import venv
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from server.backends import kit
from server.backends.process.test_archives import archive, entry
from support.servers import ROOT

from reference_server.backends import environments
from reference_server.backends.archives import Limits, digest_of
from reference_server.backends.environments import Environments, expanded
from reference_server.backends.hosts import PythonHosts
from reference_server.backends.process_host import boot
from reference_server.backends.process_host.instance import ProcessInstance
from reference_server.backends.python_host.api.server_access import NO_CALLS
from reference_server.core.errors import ServerError
from reference_server.core.health import Health
from reference_server.core.ports import SystemClock
from reference_server.observability.metric_registry import MetricRegistry

pytestmark = pytest.mark.brute_force

#: An interpreter that prints what a check of an environment reads.
PRINTS = "#!/bin/sh\necho '{}'\n"
SUITABLE = PRINTS.format('["CPython", [3, 10], "1.26.4"]')


@pytest.fixture
def cache(tmp_path: Path) -> Environments:
    return Environments(tmp_path / "cache")


def made(folder: Path, python: str | None = SUITABLE, activate: str = "") -> Path:
    """Write an environment and return its folder."""
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "activate").write_text(activate)
    if python is not None:
        (folder / "bin" / "python3").write_text(python)
        (folder / "bin" / "python3").chmod(0o755)
    return folder


def packed(file: Path, *more: tuple[str, bytes]) -> Path:
    """Write the archive of an environment and return its path."""
    executable = entry("bin/python3", SUITABLE.encode(), mode=0o755)
    file.write_bytes(archive(entry("bin/activate"), executable, *(entry(*one) for one in more)))
    return file


def failure(environments: Environments, path: Path | str) -> str:
    with pytest.raises(ServerError) as caught:
        environments.get(str(path))
    return caught.value.described()


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ("", ""),
        ("relative/env", "relative/env"),
        ("$$TRITON_MODEL_DIRECTORY/env.tar.gz", "/models/m/env.tar.gz"),
        # Seen in tritonserver 2.51.
        ("ab/$$TRITON_MODEL_DIRECTORY/0123456789", "ab//models/m23456789"),
        ("$$TRITON_MODEL_DIRECTORY/$$TRITON_MODEL_DIRECTORY", "/models/m/$$TRITON_MODEL_DIRECTORY"),
    ],
)
def test_the_models_folder_is_replaced_as_in_triton(value, path):
    assert expanded(value, Path("/models/m")) == path


def test_a_folder_is_used_where_it_is(cache, tmp_path):
    folder = made(tmp_path / "env")
    (tmp_path / "link").symlink_to(folder)
    environment = cache.get(str(tmp_path / "link"))
    assert (environment.folder, environment.python) == (folder, folder / "bin" / "python3")
    assert not (tmp_path / "cache").exists()


def test_programs_run_in_the_activated_environment(cache, tmp_path, monkeypatch):
    shows = (
        "#!/bin/sh\n"
        f'[ "$1" = show ] && echo "$TRIAL $LD_LIBRARY_PATH $2" || {SUITABLE.splitlines()[1]}\n'
    )
    folder = made(tmp_path / "my 'env'", shows, "export TRIAL=active\n")
    command = cache.get(str(folder)).command("show", "a  b")
    monkeypatch.setenv("LD_LIBRARY_PATH", "/before")
    assert subprocess.check_output(command, text=True) == f"active {folder}/lib:/before a  b\n"
    monkeypatch.delenv("LD_LIBRARY_PATH")
    assert subprocess.check_output(command, text=True) == f"active {folder}/lib a  b\n"


@pytest.mark.parametrize(("before", "after"), [("/env/lib:/old", "/old"), ("/env/lib", None)])
def test_the_library_path_is_restored_for_the_model(monkeypatch, before, after):
    monkeypatch.setenv("LD_LIBRARY_PATH", before)
    boot._restore_library_path("/env/lib")
    assert os.environ.get("LD_LIBRARY_PATH") == after


def test_an_archive_is_unpacked_once_for_its_content(tmp_path, monkeypatch):
    first = packed(tmp_path / "a.tar.gz")
    (tmp_path / "b.tar.gz").write_bytes(first.read_bytes())
    unpacked = []
    real = environments.unpack

    def unpack(*arguments):
        unpacked.append(arguments)
        return real(*arguments)

    monkeypatch.setattr(environments, "unpack", unpack)
    cache = Environments(tmp_path / "cache")
    with ThreadPoolExecutor(4) as threads:
        folders = {one.folder for one in threads.map(cache.get, [str(first)] * 4)}
    folders.add(cache.get(str(tmp_path / "b.tar.gz")).folder)
    folders.add(Environments(tmp_path / "cache").get(str(first)).folder)  # another server
    assert len(folders) == len(unpacked) == 1
    assert folders.pop().parent == tmp_path / "cache"


def test_a_model_does_not_wait_for_another_models_environment(cache, tmp_path, monkeypatch):
    slow, quick = packed(tmp_path / "slow.tar.gz"), packed(tmp_path / "b.tar.gz", ("lib/a", b"1"))
    real, has_begun, may_end = environments.unpack, threading.Event(), threading.Event()

    def unpack(file, *arguments):
        if file.name == str(slow):
            has_begun.set()
            assert may_end.wait(60)
        return real(file, *arguments)

    monkeypatch.setattr(environments, "unpack", unpack)
    with ThreadPoolExecutor(1) as threads:
        unpacked = threads.submit(cache.get, str(slow))
        assert has_begun.wait(60)
        try:
            assert cache.get(str(quick)).python.exists()
            assert not unpacked.done()
        finally:
            may_end.set()
    assert unpacked.result().python.exists()


def test_the_rest_of_a_killed_server_is_removed(cache, tmp_path):
    path = packed(tmp_path / "env.tar.gz")
    with path.open("rb") as file:
        rest = tmp_path / "cache" / f"{digest_of(file)}.partial" / "lib"
    rest.mkdir(parents=True)
    folder = cache.get(str(path)).folder
    assert not (folder / "lib").exists()
    assert not rest.exists()


def test_a_refused_archive_leaves_nothing_behind(tmp_path):
    path = packed(tmp_path / "env.tar.gz", ("lib/a", b"1"), ("lib/b", b"1"))
    small = Environments(tmp_path / "cache", Limits(entries=4))
    assert failure(small, path) == "Internal: found more than 4 entries; expected 4 at most"
    assert [path.suffix for path in (tmp_path / "cache").iterdir()] == [".lock"]
    assert Environments(tmp_path / "cache").get(str(path)).python.exists()


def test_an_archive_that_changes_while_it_is_read_is_refused(cache, tmp_path, monkeypatch):
    monkeypatch.setattr(environments, "digest_of", lambda file: "0" * 64)
    path = packed(tmp_path / "env.tar.gz")
    assert failure(cache, path) == "Internal: found a file that changes; expected no change"


def test_the_cache_of_another_user_is_refused(cache, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    text = failure(cache, packed(tmp_path / "env.tar.gz"))
    assert f"env.tar.gz cannot be unpacked: {tmp_path}/cache belongs to another user; set" in text


def test_the_cache_is_in_the_users_folder_of_caches(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    folder = Environments().get(str(packed(tmp_path / "env.tar.gz"))).folder
    assert folder.parent == tmp_path / "xdg" / "reference_server" / "environments"
    assert folder.parent.stat().st_mode & 0o777 == 0o700


def test_a_path_without_an_environment_has_tritons_error(cache, tmp_path):
    missing = tmp_path / "env.tar.gz"
    assert failure(cache, missing) == f"Internal: Failed to get the canonical path for {missing}."
    no_archive = tmp_path / "text"
    no_archive.write_text("text")
    assert failure(cache, no_archive) == "Internal: archive_read_open_filename() failed."
    assert failure(cache, tmp_path) == (
        f"Internal: Path {tmp_path}/bin/activate does not exist. The Python environment should "
        "contain an 'activate' script."
    )


@pytest.mark.parametrize(
    ("python", "activate", "text"),
    [
        (PRINTS.format('["CPython", [3, 8], "1.24.4"]'), "", "found CPython 3.8; expected CPython"),
        (PRINTS.format('["PyPy", [3, 10], "1.26.4"]'), "", "found PyPy 3.10; expected CPython 3.9"),
        (PRINTS.format('["CPython", [3, 9], null]'), "", "found no NumPy; expected NumPy 1.21"),
        (PRINTS.format('["CPython", [3, 9], "1.19.5"]'), "", "found NumPy 1.19.5; expected NumPy"),
        ("\x7fELF of another machine", "", "bin/python3 cannot run on this machine: "),
        ("#!/no/such/loader\n", "", "bin/python3 cannot run on this machine: "),
        (SUITABLE, "echo wrong >&2\nfalse\n", "bin/activate or Python failed with code 1: wrong"),
        ("#!/bin/sh\nkill -SEGV $$\n", "", "bin/activate or Python failed with code -11: "),
    ],
    ids=["3.8", "PyPy", "no NumPy", "old NumPy", "machine", "loader", "activate", "signal"],
)
def test_an_unsuitable_interpreter_is_named(cache, tmp_path, python, activate, text):
    folder = made(tmp_path / "env", python, activate)
    assert failure(cache, folder).startswith(f"Internal: Python execution env {folder}: ")
    assert text in failure(cache, folder)


def test_a_link_to_a_missing_interpreter_is_named(cache, tmp_path):
    folder = made(tmp_path / "env", None)
    (folder / "bin" / "python3").symlink_to("/opt/python3.10/bin/python3")
    assert "found bin/python3, a link to /opt/python3.10/bin/python3, which does not exist" in (
        failure(cache, folder)
    )


def test_an_environment_without_python_uses_the_servers(cache, tmp_path, caplog):
    """In Triton the default Python runs the model, too."""
    folder = made(tmp_path / "env", None)
    with caplog.at_level(logging.WARNING):
        assert cache.get(str(folder)).python == Path(sys.executable)
    assert "found no bin/python; the model runs with the server's Python" in caplog.text


# ------------------------------------------------------------------------------------- the host


def hosts(tmp_path: Path) -> PythonHosts:
    cache = Environments(tmp_path / "cache")
    return PythonHosts({}, SystemClock(), MetricRegistry(), environments=cache)


def instance(tmp_path: Path, environment: Path, chosen: str = "", model: str = "") -> object:
    file = kit.model_file(tmp_path, model)
    spec = kit.spec(file, environment=str(environment))
    return hosts(tmp_path).instance(spec, NO_CALLS, chosen, Health())


def test_a_model_with_an_environment_runs_in_a_process(tmp_path):
    folder = made(tmp_path / "env")
    assert isinstance(instance(tmp_path, folder), ProcessInstance)
    assert isinstance(instance(tmp_path, folder, "process"), ProcessInstance)
    with pytest.raises(ServerError, match="EXECUTION_HOST: found 'inline' beside EXECUTION_ENV_"):
        instance(tmp_path, folder, "inline")


def test_an_environment_needs_linux(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(ServerError, match=r"^host: found process on "):
        instance(tmp_path, made(tmp_path / "env"))


SHOWS = kit.replying(
    "def reply():",
    "    return '|'.join([sys.prefix, np.__version__, repr(sys.argv), repr(sys.path[0])])",
)


def test_a_model_runs_with_the_python_of_its_environment(tmp_path):
    folder = ROOT.resolve() / ".oracle" / "venv"
    if not (folder / "bin" / "activate").exists():
        pytest.skip("needs an environment with another NumPy: make oracle")
    opened = instance(tmp_path, folder, model=SHOWS)
    opened.open()
    try:
        prefix, numpy, arguments, first = kit.said(opened).split("|")
    finally:
        opened.close()
    assert Path(prefix).resolve() == folder.resolve()
    assert numpy.startswith("1.26.")
    assert (arguments, first) == ("['']", "''")


#: The folder of the interpreter, the activated folder, and the place of a module.
FACTS = "'|'.join([sys.prefix, os.environ['VIRTUAL_ENV'], own_module.__file__])"
#: Finds the environment from the place of the script, as in an archive of venv-pack.
RELOCATED = 'VIRTUAL_ENV=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)\nexport VIRTUAL_ENV\n'


def test_a_model_runs_in_an_unpacked_virtual_environment(tmp_path):
    folder = tmp_path / "venv"
    venv.create(folder, symlinks=True)
    links = [link.readlink() for link in (folder / "bin").glob("python*")]
    assert any(link.is_absolute() for link in links)  # to the interpreter; venv-pack keeps it
    (folder / "bin" / "activate").write_text(RELOCATED)
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "own_module.py").write_text("")
    (packages / "numpy.pth").write_text(str(Path(np.__file__).parents[1]))  # instead of a copy
    with tarfile.open(tmp_path / "env.tar.gz", "w:gz") as tar:
        for part in folder.iterdir():
            tar.add(part, part.name)
    shutil.rmtree(folder)
    model = kit.replying("import os, own_module", "def reply():", f"    return {FACTS}")
    opened = instance(tmp_path, tmp_path / "env.tar.gz", model=model)
    opened.open()
    try:
        prefix, activated, module = kit.said(opened).split("|")
    finally:
        opened.close()
    assert Path(prefix).parent == tmp_path / "cache"
    assert activated == prefix
    assert Path(module).is_relative_to(prefix)


#: Imports the child's code. NumPy is replaced, since few interpreters have it.
IMPORTS = """
import sys
from unittest.mock import MagicMock
sys.modules["numpy"] = sys.modules["numpy.typing"] = MagicMock()
sys.path.insert(0, {folder!r})
import boot
boot._add_package({package!r})
boot._import_child()
from reference_server.backends.process_host import messages
from reference_server.core.request import Execution
execution = Execution([None], 1, 2)
print(messages.unpack_execution(None, messages.pack_execution(None, execution)) == execution)
"""


@pytest.mark.parametrize("version", ["3.9", "3.10"])
def test_the_childs_code_runs_on_old_pythons(version):
    # Not the shims of pyenv, which may refuse to run.
    real = next(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"), None)
    python = real or shutil.which(f"python{version}")
    if python is None:
        pytest.skip(f"needs Python {version}")
    file = Path(boot.__file__)
    code = IMPORTS.format(folder=str(file.parent), package=str(file.parents[2]))
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("True\n", "")
