import importlib.util
import sys
import threading
from pathlib import Path

import pytest

import ascend_simulator
from ascend_simulator import Settings, reset_for_tests

SITE = Path(ascend_simulator.__file__).parent / "site"


def load_acl():
    """Return the module `acl` that `import acl` gives in the simulator's environment."""
    if "simulated_acl" not in sys.modules:
        spec = importlib.util.spec_from_file_location("simulated_acl", SITE / "acl/__init__.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        sys.modules["simulated_acl"] = module
    return sys.modules["simulated_acl"]


@pytest.fixture
def machine():
    """Start a process with `machine(**settings)`; return the module `acl`, not initialised."""

    def start(**settings):
        reset_for_tests(Settings(**settings))
        return load_acl()

    yield start
    reset_for_tests(Settings())
    for thread in threading.enumerate():
        if thread.name.startswith("ascend-"):
            thread.join()


@pytest.fixture
def started(machine):
    """Start a process as `machine` does, initialised, device 0 current in this thread."""

    def start(**settings):
        module = machine(**settings)
        assert module.init() == 0
        assert module.rt.set_device(0) == 0
        return module

    return start


@pytest.fixture
def acl(started):
    return started()
