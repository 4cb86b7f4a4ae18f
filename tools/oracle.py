"""The oracle: NVIDIA's tritonserver and perf_analyzer, unpacked from their PyPI wheels.

    python tools/oracle.py                                      install into .oracle/, once
    python tools/oracle.py serve --model-repository DIR [...]   run tritonserver with these flags
    python tools/oracle.py perf [...]                           run perf_analyzer with these flags

This program uses only the standard library, so any Python 3.10 to 3.12 with a shared libpython can
run it; that Python also executes the models. See docs/oracle.md.
"""

from __future__ import annotations

import fcntl
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import time
import zipfile
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parent.parent
HOME = ROOT / ".oracle"
VENV = HOME / "venv"
SERVER = HOME / "server" / "pytriton" / "tritonserver"
# The server finds its libraries by a relative path, so both folders keep the wheel's layout.
LIBRARIES = HOME / "server" / "nvidia_pytriton.libs"
PERF_ANALYZER = HOME / "perf" / "perf_analyzer"
PERF_LIBRARIES = HOME / "perf" / "lib"
STAMP = HOME / "installed.json"

# Everything that determines the content of HOME. After a change, `make oracle` installs again.
RECIPE = {
    "layout": 2,
    "server": "nvidia-pytriton==0.7.0",  # holds tritonserver 2.51.0 (release 24.10)
    "perf_analyzer": "tritonclient==2.50.0",  # later builds need glibc 2.38
    # Packages for model processes. With NumPy 2, the server's stub would write empty tensors.
    "packages": ["numpy==1.26.4", "onnx>=1.16", "onnxruntime>=1.18", "tokenizers>=0.20"],
}
# The stub exists for 3.8 to 3.13, but NumPy 1.26 has no wheel for 3.13.
PYTHONS = ((3, 10), (3, 12))
PYTHON = sys.version_info[:2]
OLDEST_GLIBC = (2, 35)


class OracleError(Exception):
    """A reason why the oracle cannot be installed or run, with the remedy."""


def main(arguments: list[str]) -> None:
    """Install, or replace this process by one of the two programs."""
    try:
        match arguments:
            case [] | ["install"]:
                install()
            case ["serve", *flags]:
                serve(flags)
            case ["perf", *flags]:
                perf(flags)
            case _:
                print(__doc__)
                raise SystemExit(0 if arguments in (["-h"], ["--help"]) else 2)
    except OracleError as error:
        raise SystemExit(f"oracle: {error}") from None


# ---------------------------------------------------------------------------------------- install


def install() -> None:
    """Install unless the stamp shows that the oracle is installed.

    The stamp is removed first and written last, so it exists only with a complete oracle. A lock
    makes a second installer wait and then find the oracle installed.
    """
    if is_installed():
        print(f"oracle: ready in {HOME}")
        return
    check_machine()
    library = shared_libpython()
    HOME.mkdir(exist_ok=True)
    with (HOME / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if is_installed():
            return
        started = time.monotonic()
        STAMP.unlink(missing_ok=True)
        for directory in (VENV, HOME / "server", HOME / "perf", HOME / "wheels"):
            shutil.rmtree(directory, ignore_errors=True)
        make_environment()
        unpack_server()
        unpack_perf_analyzer()
        shutil.rmtree(HOME / "wheels")
        write_stamp(library.parent)
        print(f"oracle: installed in {time.monotonic() - started:.0f} s, ready in {HOME}")


def is_installed() -> bool:
    """Return whether HOME has the content of RECIPE, and the interpreter still exists."""
    try:
        stamp = json.loads(STAMP.read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return False
    return stamp.get("recipe") == RECIPE and (VENV / "bin" / "python3").exists()


def write_stamp(libpython_directory: Path) -> None:
    """Write the recipe and the folder of libpython to the stamp, atomically."""
    stamp = {"recipe": RECIPE, "libpython_directory": str(libpython_directory)}
    partial = STAMP.with_suffix(".partial")
    partial.write_text(json.dumps(stamp, indent=2) + "\n")
    partial.replace(STAMP)


def check_machine() -> None:
    """Raise OracleError on machines for which the wheels were not built."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        raise OracleError(
            "tritonserver's wheel runs on Linux x86_64 only, and this machine is "
            f"{platform.system()} {platform.machine()}; run it in a container or on another machine"
        )
    library, version = platform.libc_ver()
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    if library != "glibc" or numbers < OLDEST_GLIBC:
        raise OracleError(
            "tritonserver's wheel needs glibc 2.35 or later (Debian 12, Ubuntu 22.04), and this "
            f"system has {library or 'another C library'} {version}; use such a system or container"
        )


def shared_libpython() -> Path:
    """Return the running Python's shared library, to which the server's stub is linked."""
    version = "{}.{}".format(*PYTHON)
    if not PYTHONS[0] <= PYTHON <= PYTHONS[1]:
        raise OracleError(
            f"model processes need Python 3.10 to 3.12 (NumPy 1.26 has wheels for these), and this "
            f"is {version}; run this file with one of them, such as python3.11"
        )
    name = f"libpython{version}.so.1.0"
    # LIBDIR is the folder chosen at build time; a moved interpreter has the library in its prefix.
    places = [sysconfig.get_config_var("LIBDIR"), Path(sys.base_prefix) / "lib"]
    places.append(sysconfig.get_config_var("LIBPL"))
    for place in places:
        if place and (library := Path(place) / name).exists():
            return library
    raise OracleError(
        f"model processes need a shared {name}, and {sys.executable} was built without one; run "
        "this file with a Python that has it, such as the system's own, or build one with "
        "--enable-shared"
    )


def make_environment() -> None:
    """Create the environment of model processes: packages, and ge_runtime from its source."""
    step(f"environment of the models: {', '.join(RECIPE['packages'])}")
    creation = subprocess.run(
        [sys.executable, "-m", "venv", VENV], capture_output=True, text=True, check=False
    )
    if creation.returncode:
        raise OracleError(
            f"{sys.executable} cannot make a virtual environment; on Debian and Ubuntu install "
            f"python3-venv. It said: {' '.join((creation.stdout + creation.stderr).split())}"
        )
    pip("install", *RECIPE["packages"])
    # A path file acts as an editable install: model processes ignore PYTHONPATH, but read path
    # files. Its path is relative, so that the tree can be moved.
    packages = next((VENV / "lib").glob("python3.*")) / "site-packages"
    (packages / "ge_runtime.pth").write_text(f"{os.path.relpath(ROOT / 'plugin', packages)}\n")


def unpack_server() -> None:
    """Unpack tritonserver, its libraries and the stub for this Python."""
    step(f"tritonserver from {RECIPE['server']}")
    with zipfile.ZipFile(fetch(RECIPE["server"])) as wheel:
        wanted = ("pytriton/tritonserver/", "nvidia_pytriton.libs/")
        members = [name for name in wheel.namelist() if name.startswith(wanted)]
        wheel.extractall(HOME / "server", members)
    # zipfile drops execute bits. The backend starts the stub in its own folder.
    (SERVER / "bin" / "tritonserver").chmod(0o755)
    version = "{}.{}".format(*PYTHON)
    stub = SERVER / "backends" / "python" / "triton_python_backend_stub"
    shutil.copyfile(SERVER / "python_backend_stubs" / version / stub.name, stub)
    stub.chmod(0o755)


def unpack_perf_analyzer() -> None:
    """Unpack perf_analyzer, and add two libraries that its wheel lacks."""
    step(f"perf_analyzer from {RECIPE['perf_analyzer']}")
    # Only the platform wheel has the program; the pure wheel has only the client library.
    wheel_file = fetch(
        RECIPE["perf_analyzer"], "--only-binary=:all:", "--platform", "manylinux1_x86_64"
    )
    PERF_LIBRARIES.mkdir(parents=True)
    with zipfile.ZipFile(wheel_file) as wheel:
        member = next(n for n in wheel.namelist() if n.endswith("/data/bin/perf_analyzer"))
        PERF_ANALYZER.write_bytes(wheel.read(member))
    PERF_ANALYZER.chmod(0o755)
    for pattern, name in (("libb64-*", "libb64.so.0d"), ("libcudart-*", "libcudart.so.12")):
        library = next(LIBRARIES.glob(pattern))
        (PERF_LIBRARIES / name).symlink_to(os.path.relpath(library, PERF_LIBRARIES))


def fetch(requirement: str, *options: str) -> Path:
    """Download the wheel of a requirement; return its path."""
    directory = HOME / "wheels" / requirement
    pip("download", "--no-deps", "--dest", str(directory), *options, requirement)
    (wheel,) = directory.glob("*.whl")
    return wheel


def pip(*arguments: str) -> None:
    """Run the environment's pip; its output shows the progress of slow steps."""
    command = [VENV / "bin" / "python3", "-m", "pip", "--disable-pip-version-check", *arguments]
    if subprocess.run(command, check=False).returncode:
        raise OracleError(
            f"pip {arguments[0]} failed (its reason is above). Run this again when the network "
            "and the package index are available"
        )


def step(text: str) -> None:
    """Announce a step before the output of its tools."""
    print(f"oracle: {text}", flush=True)


# ----------------------------------------------------------------------------------------- launch


def serve(flags: list[str]) -> NoReturn:
    """Replace this process by tritonserver, which thus receives signals and sets the exit code."""
    stamp = read_stamp()
    program = SERVER / "bin" / "tritonserver"
    # The built-in defaults are below /opt. The user's flags follow these, and override them.
    directories = [
        f"--backend-directory={SERVER / 'backends'}",
        f"--cache-directory={SERVER / 'caches'}",
    ]
    environment = os.environ | {
        "LD_LIBRARY_PATH": library_path(LIBRARIES, stamp["libpython_directory"]),
        # Model processes run the first python3 in PATH.
        "PATH": f"{VENV / 'bin'}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        "VIRTUAL_ENV": str(VENV),
    }
    os.execve(program, [program.name, *directories, *flags], environment)


def perf(flags: list[str]) -> NoReturn:
    """Replace this process by perf_analyzer."""
    read_stamp()
    environment = os.environ | {"LD_LIBRARY_PATH": library_path(PERF_LIBRARIES)}
    os.execve(PERF_ANALYZER, [PERF_ANALYZER.name, *flags], environment)


def read_stamp() -> dict[str, str]:
    """Return the stamp's content. Raise OracleError if the oracle is not installed."""
    if not is_installed():
        raise OracleError("not installed, or installed by another recipe; run `make oracle` first")
    return json.loads(STAMP.read_text())


def library_path(*directories: str | Path) -> str:
    """Return LD_LIBRARY_PATH with these directories first."""
    inherited = os.environ.get("LD_LIBRARY_PATH")
    return os.pathsep.join(map(str, [*directories, *([inherited] if inherited else [])]))


if __name__ == "__main__":
    main(sys.argv[1:])
