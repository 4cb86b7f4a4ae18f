"""CANN's packages are found where set_env.sh says, and told of where they are broken."""

import subprocess
import sys
from pathlib import Path

import pytest
from runtime.support.ascend import ENVIRONMENT
from runtime.support.fakes import forget

import ge_runtime
from ge_runtime.ascend.ge_py import open_ge
from ge_runtime.ascend.installation import import_cann_module
from ge_runtime.ascend.pyacl import open_driver
from ge_runtime.errors import NoDevice

PROGRAM = f"""
import importlib.util, sys
sys.path.append({str(Path(ge_runtime.__file__).parents[1])!r})
from ge_runtime.ascend.installation import apply_pythonpath
before = list(sys.path)
apply_pythonpath()
apply_pythonpath()
assert sys.path[:len(before)] == before
print(importlib.util.find_spec("acl") is not None, len(sys.path) - len(before))
"""


@pytest.mark.parametrize(
    ("options", "printed"),
    [
        # As Triton's model processes from Python 3.11 on.
        (["-I"], "True 1"),
        ([], "True 0"),
    ],
)
def test_folders_of_pythonpath_are_searched_last_and_once(options, printed):
    command = [sys.executable, *options, "-c", PROGRAM]
    done = subprocess.run(command, env=ENVIRONMENT, check=True, capture_output=True, text=True)
    assert done.stdout.strip() == printed


BROKEN = {
    "raise ImportError('libascendcl.so: cannot open')": "libascendcl.so: cannot open",
    "import ctypes; ctypes.CDLL('libgraph_no.so')": "OSError: libgraph_no.so: cannot open shared",
    # GE-PY's Python files of one release with the libraries of another.
    "import ctypes; ctypes.CDLL(None).GeApiWrapper_Tensor_ToHost": "AttributeError: .*undefined",
    "raise SystemError('initialization failed')": "SystemError: initialization failed",
    "import sys; sys.exit()": "SystemExit: ",
}
"""What a module does as it is imported: what is told of it."""


@pytest.fixture(params=BROKEN)
def broken(request, tmp_path, monkeypatch):
    """`acl` and `ge`, of which half is there; what is told."""
    for name in ("acl", "ge"):
        (tmp_path / f"{name}.py").write_text(request.param)
        monkeypatch.delitem(sys.modules, name, raising=False)
    forget("ge")
    monkeypatch.syspath_prepend(tmp_path)
    for opener in (open_driver, open_ge):
        opener.cache_clear()
    yield BROKEN[request.param]
    for opener in (open_driver, open_ge):
        opener.cache_clear()


def test_half_an_installation_is_an_import_error_that_says_what_is_missing(broken):
    with pytest.raises(ImportError, match=broken):
        import_cann_module("acl")


@pytest.mark.parametrize(("opener", "module"), [(open_driver, "acl"), (open_ge, "ge")])
def test_half_an_installation_is_no_device_and_has_its_cure(broken, opener, module):
    with pytest.raises(NoDevice, match=rf"found no module `{module}.*\({broken}.*set_env.sh"):
        opener()
