"""CANN's packages are found where set_env.sh says, whatever the interpreter was told to ignore."""

import subprocess
import sys
from pathlib import Path

import pytest
from runtime.support.ascend import ENVIRONMENT

import ge_runtime

PROGRAM = f"""
import importlib.util, sys
sys.path.append({str(Path(ge_runtime.__file__).parents[1])!r})
from ge_runtime.ascend.search_path import heed_pythonpath
before = list(sys.path)
heed_pythonpath()
heed_pythonpath()
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
