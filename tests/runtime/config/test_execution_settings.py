import pytest
from runtime.support.configs import encoder_config
from runtime.support.parsing import parse

from ge_runtime.config import RuntimeConfig, Window
from ge_runtime.config.execution_settings import ServiceShare, TimeLimits


@pytest.mark.parametrize(
    ("key", "text", "field", "value"),
    [
        ("cost", "calibrate", "cost", None),
        (
            "cost",
            "element_ns = 35.5, launch_us=120,element2_ns=0",
            "cost",
            pytest.approx((120e-6, 35.5e-9, 0.0, 0.0)),
        ),
        (
            "cost",
            "launch_us=120, element_ns=35.5, element2_ns=0, growth_ns=2",
            "cost",
            pytest.approx((120e-6, 35.5e-9, 0.0, 2e-9)),
        ),
        ("cost_cache", "off", "cost_cache", "off"),
        ("cost_cache", "/var/cache/costs", "cost_cache", "/var/cache/costs"),
        ("cost_cache", "costs", "cost_cache", "costs"),
        ("oversize", "fallback", "oversize", "fallback"),
        ("warmup", "none", "warmup", "none"),
        ("devices", "cpu, cpu", "devices", ("cpu", "cpu")),
        ("devices", "npu:0, npu:12", "devices", ("npu:0", "npu:12")),
        ("devices", "npu:3", "device_kind", "npu"),
        ("devices", "cuda:0, cuda:1", "devices", ("cuda:0", "cuda:1")),
        ("devices", "cuda:3", "device_kind", "cuda"),
        ("stages", "encoder, head-2.b", "stages", ("encoder", "head-2.b")),
        ("stages", "encoder", "stages", ("encoder",)),
        ("histogram", "./seen//sizes.json", "histogram", "seen/sizes.json"),
        ("workspace_pool_mib", "512", "workspace_pool_bytes", 512 * 1024 * 1024),
        ("cost", "calibrate", "time_limits", TimeLimits(60, None)),
    ],
)
def test_setting_is_read(key, text, field, value):
    assert getattr(parse(encoder_config({key: text})), field) == value


def test_engines_on_several_devices_share_the_cores():
    config = encoder_config({"devices": "cpu, cpu"}, instance_group=[{"count": 2}])
    assert parse(config, cores=8).intra_op_threads == 2


def test_models_execute_in_their_own_process_by_default():
    assert parse(encoder_config()).service_share is None
    assert parse(encoder_config({"placement": "local"})).service_share is None


@pytest.mark.parametrize(
    ("parameters", "share"),
    [
        ({}, ServiceShare(1.0, 0)),
        ({"service_weight": "2.5"}, ServiceShare(2.5, 0)),
        ({"service_weight": "0.001", "service_priority": "3"}, ServiceShare(0.001, 3)),
    ],
)
def test_the_share_of_the_device_service_is_read(parameters, share):
    assert parse(encoder_config({"placement": "service", **parameters})).service_share == share


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
