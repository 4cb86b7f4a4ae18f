"""Parsing of configurations, and their faults."""

import pytest

from ge_runtime.config import RuntimeConfig
from ge_runtime.errors import ConfigFault


def parse(config, cores=4, derived=()):
    return RuntimeConfig.parse(config, cores=cores, derived=derived)


def faults_of(config, derived=()):
    with pytest.raises(ConfigFault) as raised:
        parse(config, derived=derived)
    return list(raised.value.faults)


def assert_fault(config, expected, derived=()):
    """Assert that one of the faults contains the text `expected`."""
    faults = faults_of(config, derived)
    assert any(expected in fault for fault in faults), faults


def assert_refused(build, key, text, expected, others=None):
    """Assert that a fault of the parameter `key` contains `expected`, and none occurs twice."""
    faults = faults_of(build((others or {}) | {key: text}))
    field = f"parameter '{key}': "
    assert any(fault.startswith(field) and expected in fault for fault in faults), faults
    assert len(set(faults)) == len(faults), faults
