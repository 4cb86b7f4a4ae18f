"""The parameters `profile` and `dump`."""

import pytest
from runtime.support.configs import encoder_config

from ge_runtime.config import RuntimeConfig, Window


@pytest.mark.parametrize(
    ("parameters", "window"),
    [
        ({}, None),
        ({"profile": "dir=/p"}, Window("profile", "/p", 1, 10)),
        (
            {"profile": "dir=/p, batches=20, from=100, metrics=l2"},
            Window("profile", "/p", 100, 20, metrics="l2"),
        ),
        ({"dump": "dir=/d"}, Window("dump", "/d", 1, 1)),
        (
            {"dump": "dir=/d, batches=2, mode=all, layers=conv1;pool1"},
            Window("dump", "/d", 1, 2, mode="all", layers=("conv1", "pool1")),
        ),
    ],
)
def test_windows(parameters, window):
    config = encoder_config({"devices": "npu:0", **parameters})
    assert RuntimeConfig.parse(config, cores=1).window == window
    if window is not None:
        assert str(window) == f"{window.parameter} of executions {window.first} to {window.last}"
