"""The simulator in another process that only executes `import acl`."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

import ascend_simulator
from ascend_simulator import RULES
from ascend_simulator.__main__ import main


def shell(command, **variables):
    """Run a command in a shell that has evaluated the output of `env`."""
    line = f'eval "$({sys.executable} -m ascend_simulator env $OPTIONS)" && {command}'
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path.endswith("simulator")),
        "OPTIONS": "",
        **variables,
    }
    return subprocess.run(
        ["/bin/sh", "-c", line], env=environment, capture_output=True, text=True, timeout=60
    )


def python(script, **variables):
    """Run a script in that environment."""
    return shell(f'{sys.executable} -W error -c "$SCRIPT"', SCRIPT=dedent(script), **variables)


@pytest.mark.brute_force
def test_a_program_that_imports_acl_gets_the_simulator():
    done = python(
        """
        import acl
        assert acl.init() == 0
        assert acl.rt.set_device(0) == 0
        stream, ret = acl.rt.create_stream()
        device, ret = acl.rt.malloc(1024, 0)
        pinned, ret = acl.rt.malloc_host(1024)
        assert acl.rt.memcpy_async(device, 1024, pinned, 1024, 1, stream) == 0
        assert acl.rt.synchronize_stream(stream) == 0
        assert acl.rt.free(device) == acl.rt.free_host(pinned) == 0
        assert acl.rt.destroy_stream(stream) == acl.rt.reset_device(0) == acl.finalize() == 0
        assert acl.init() == 0
        print(acl.get_soc_name(), acl.rt.get_device_count())
        """,
        OPTIONS="--devices 2 --soc AscendSimulator910",
    )
    assert (done.stdout, done.stderr) == ("AscendSimulator910 (2, 0)\n", "")


@pytest.mark.brute_force
@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("NOTHING", "1", "unknown name, expected one of "),
        ("DEVICES", "two", "found 'two', expected a whole number of at least 0, e.g. 2"),
        ("FAULTS", "execute@x=507010", "found 'execute@x=507010', expected PLACE@N=ACTION, "),
    ],
)
def test_importing_acl_reports_invalid_settings(name, text, message):
    variable = f"ASCEND_SIMULATOR_{name}"
    done = python(f"import os; os.environ['{variable}'] = '{text}'; import acl")
    assert done.returncode != 0
    assert done.stderr.splitlines()[-1].startswith(f"ImportError: {variable}: {message}")


def test_a_missing_interpreter_of_atc_is_named():
    done = subprocess.run(
        [Path(ascend_simulator.__file__).parent / "site" / "bin" / "atc", "--help"],
        env=os.environ | {"ASCEND_SIMULATOR_PYTHON": "/nowhere/python3"},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("ASCEND_SIMULATOR_PYTHON: found '/nowhere/python3', expected")


@pytest.mark.brute_force
def test_reading_a_device_address_on_the_host_faults():
    done = python(
        """
        import acl, ctypes
        acl.init(); acl.rt.set_device(0)
        device, ret = acl.rt.malloc(64, 0)
        print("reading", flush=True)
        ctypes.string_at(device, 1)
        print("never here")
        """
    )
    assert done.stdout == "reading\n"
    assert done.returncode in (-signal.SIGSEGV, 128 + signal.SIGSEGV)


@pytest.mark.brute_force
@pytest.mark.parametrize("mode", ["strict", "lenient"])
def test_a_fork_after_init_is_found(mode):
    done = python(
        """
        import os, warnings
        import acl
        acl.init()
        warnings.simplefilter("ignore")
        child = os.fork()
        if child == 0:
            try:
                print("code", acl.rt.get_device_count(), flush=True)
            except AssertionError as error:
                print(error, flush=True)
            os._exit(0)
        os.waitpid(child, 0)
        print(acl.rt.get_device_count())
        """,
        OPTIONS=f"--mode {mode}",
    )
    found, parents = done.stdout.splitlines()
    assert parents == "(1, 0)", done.stderr
    assert found == (
        "code (0, 507899)"
        if mode == "lenient"
        else "[process.forked] acl.rt.get_device_count: called in a child of the process that "
        "called acl.init()"
    )


@pytest.mark.brute_force
def test_a_fork_before_init_is_allowed():
    done = python(
        """
        import os
        import acl
        acl.get_recent_err_msg()
        child = os.fork()
        if child == 0:
            os._exit(acl.init())
        print(os.waitpid(child, 0)[1], acl.init())
        """
    )
    assert done.stdout == "0 0\n", done.stderr


def test_the_environment_can_be_evaluated_twice(capsys, tmp_path):
    assert main(["env"], {"PYTHONPATH": "/before", "PATH": "/bin:/usr/bin"}) == 0
    once = capsys.readouterr().out
    exported = dict(line.removeprefix("export ").split("=", 1) for line in once.splitlines())
    site, plugin, before = exported["PYTHONPATH"].split(":")
    assert (site, before) == (f"{plugin}/ascend_simulator/site", "/before")
    assert exported["PATH"] == f"{site}/bin:/bin:/usr/bin"
    assert main(["env"], exported) == 0
    assert capsys.readouterr().out == once


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--devices", "x"], "ASCEND_SIMULATOR_DEVICES: found 'x'"),
        (["--mode", "mild"], "ASCEND_SIMULATOR_MODE: found 'mild', expected strict, lenient or"),
        (["--faults", "malloc@1"], "ASCEND_SIMULATOR_FAULTS: found 'malloc@1', expected PLACE@N="),
    ],
)
def test_invalid_settings_are_refused_before_anything_runs(capsys, arguments, message):
    assert main(["env", *arguments], {}) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith(f"ascend_simulator: {message}")


def test_the_rules_are_listed(capsys):
    assert main(["rules"]) == 0
    listed = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert listed.keys() == RULES.keys()
    assert listed["memory.use-after-free"] == "Memory must not be used after it is freed."
    assert listed["util.deprecated"].endswith("use ctypes instead. (only a warning)")
