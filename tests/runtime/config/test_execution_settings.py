import pytest
from runtime.support.configs import encoder_config
from runtime.support.parsing import assert_fault, faults_of, parse

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


@pytest.mark.parametrize(
    ("key", "text", "expected"),
    [
        (
            "cost",
            "cheap",
            "parameter 'cost': found 'cheap', expected 'calibrate', or numbers of at least 0 as in "
            "'launch_us=120, element_ns=35.2, element2_ns=0.01'",
        ),
        ("cost", "launch_us=1, element_ns=2", "parameter 'cost': found"),
        (
            "cost",
            "launch_us=1, launch_us=1, element_ns=2, element2_ns=3",
            "parameter 'cost': found",
        ),
        ("cost", "launch_us=1, element_ns=2, element3_ns=3", "parameter 'cost': found"),
        ("cost", "launch_us=1, element_ns=2, growth_ns=3", "parameter 'cost': found"),
        (
            "cost_cache",
            "../costs",
            "parameter 'cost_cache': found '../costs', expected auto, off, a folder, or one inside "
            "the version folder, e.g. costs",
        ),
        ("cost", "launch_us=1, element_ns=x, element2_ns=3", "parameter 'cost': found"),
        ("cost", "launch_us=1, element_ns=-2, element2_ns=3", "parameter 'cost': found"),
        ("cost", "launch_us=1, element_ns=inf, element2_ns=3", "parameter 'cost': found"),
        ("cost", "launch_us=1, element_ns=nan, element2_ns=3", "parameter 'cost': found"),
        ("cost", "launch_us, element_ns, element2_ns", "parameter 'cost': found"),
        (
            "oversize",
            "split",
            "parameter 'oversize': found 'split', expected 'error' or 'fallback'",
        ),
        ("warmup", "all", "parameter 'warmup': found 'all', expected 'gears' or 'none'"),
        (
            "devices",
            "cpu, cuda",
            "parameter 'devices': found no device 'cuda', expected one of: cpu, cuda:0, npu:0; did "
            "you mean 'cuda:0'?",
        ),
        ("devices", "", "parameter 'devices': found no device ''"),
        ("devices", "cpu, cuda:0", "found cpu and cuda, expected devices of one kind"),
        ("devices", "NPU:0", "cpu, cuda:0, npu:0; did you mean 'npu:0'?"),
        (
            "stages",
            "encoder, encoder",
            "parameter 'stages': found 'encoder, encoder', expected the names of files without "
            "their endings, each once, e.g. encoder, classifier",
        ),
        ("stages", "", "parameter 'stages': found ''"),
        ("stages", "../encoder", "parameter 'stages': found '../encoder'"),
        ("stages", ".hidden", "parameter 'stages': found '.hidden'"),
        (
            "histogram",
            "/tmp/sizes.json",
            "parameter 'histogram': found '/tmp/sizes.json', expected a path inside the version "
            "folder, e.g. histogram.json",
        ),
        ("histogram", "../sizes.json", "parameter 'histogram': found '../sizes.json'"),
        ("histogram", "seen/../../sizes.json", "parameter 'histogram': found"),
        ("histogram", "", "parameter 'histogram': found ''"),
        ("histogram", ".", "parameter 'histogram': found '.'"),
        (
            "workspace_pool_mib",
            "0",
            "parameter 'workspace_pool_mib': found '0', expected a whole number of at least 1",
        ),
        ("workspace_pool_mib", "1.5", "parameter 'workspace_pool_mib': found '1.5'"),
    ],
)
def test_an_invalid_setting_is_refused(key, text, expected):
    assert_fault(encoder_config({key: text}), expected)


def test_an_unknown_device_is_reported_once():
    assert len(faults_of(encoder_config({"devices": "cuda, cuda"}))) == 1


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
    ("parameters", "fault"),
    [
        ({"placement": "cloud"}, "parameter 'placement': found 'cloud', expected 'local' or"),
        ({"service_weight": "2"}, "parameter 'service_weight': found '2', expected nothing, or"),
        ({"service_priority": "2"}, "parameter 'service_priority': found '2', expected nothing"),
        *(
            (
                {"placement": "service", "service_weight": text},
                f"parameter 'service_weight': found '{text}', expected a number from 0.001 to 1000",
            )
            for text in ("0", "-1", "nan", "inf", "much", "1001")
        ),
        (
            {"placement": "service", "service_priority": "-1"},
            "parameter 'service_priority': found '-1', expected a whole number of at least 0",
        ),
        *(
            ({"devices": "npu:0", name: text}, f"parameter '{name}': found {fault}")
            for name, text, fault in (
                ("profile", "batches=2", "dir '', expected a folder from / on, as in 'dir=/var"),
                ("profile", "dir=prof", "dir 'prof', expected a folder from / on"),
                ("profile", "dir=/p, batches=0", "batches '0', expected a whole number of at"),
                ("profile", "dir=/p, from=-1", "from '-1', expected a whole number of at least 1"),
                ("profile", "dir=/p, metrics=all", "metrics 'all', expected one of arithmetic, "),
                ("profile", "dir=/p, mode=all", "'mode', expected dir, batches, from, metrics, as"),
                ("dump", "dir=/p, mode=both", "mode 'both', expected one of output, input, all"),
            )
        ),
        (
            {"devices": "npu:0", "profile": "dir=/p", "dump": "dir=/d"},
            "parameter 'dump': found 'profile' as well, expected one of the two",
        ),
        (
            {"profile": "dir=/p"},
            "parameter 'profile': found 'dir=/p' for engine auto on cpu, expected an .om file on a",
        ),
        (
            {"dump": "dir=/p", "devices": "npu:0", "placement": "service"},
            "parameter 'dump': found placement: service, expected placement: local",
        ),
        (
            {"unplanned_memory": "allowed"},
            "parameter 'unplanned_memory': found 'allowed' for engine auto on cpu, expected",
        ),
        (
            {"unplanned_memory": "allowed", "placement": "service", "devices": "npu:0"},
            "parameter 'unplanned_memory': found 'allowed', expected 'refused' with placement",
        ),
        (
            {"torch_compiler": "npugraph_ex"},
            "parameter 'torch_compiler': found 'npugraph_ex' for engine auto on cpu, expected",
        ),
        (
            {"torch_compiler": "aot", "devices": "npu:0", "engine": "torch"},
            "parameter 'torch_compiler': found 'aot', expected ",
        ),
        (
            {"operator_timeout_s": "5"},
            "parameter 'operator_timeout_s': found '5' for engine auto on cpu, expected nothing",
        ),
        (
            {"execution_timeout_s": "5", "devices": "npu:0", "engine": "torch"},
            "parameter 'execution_timeout_s': found '5' for engine torch on npu:0, expected",
        ),
        (
            {"execution_timeout_s": "5", "devices": "npu:0", "placement": "service"},
            "parameter 'execution_timeout_s': found '5', expected nothing with placement: service",
        ),
        (
            {"execution_timeout_s": "901", "devices": "npu:0"},
            "parameter 'execution_timeout_s': found '901', expected at most 900",
        ),
        (
            {"operator_timeout_s": "60", "devices": "npu:0"},
            "parameter 'operator_timeout_s': found '60', expected fewer than the 60 s of",
        ),
        (
            {"placement": "service", "workspace_pool_mib": "512"},
            "parameter 'workspace_pool_mib': found '512', expected nothing: with placement",
        ),
    ],
)
def test_conflicting_settings_are_refused(parameters, fault):
    assert_fault(encoder_config(parameters), fault)


def test_executions_of_ten_minutes_can_be_allowed():
    limits = {"execution_timeout_s": "900", "operator_timeout_s": "899", "devices": "npu:0"}
    assert parse(encoder_config(limits)).time_limits == TimeLimits(900, 899)
