"""Parameters shared with the C++ backend npu_ge, and flags of ATC."""

import pytest
from runtime.support.configs import encoder_config
from runtime.support.parsing import assert_fault, parse

CARDS = {"device_ids": "0, 2"}
GEARS = {"gears.batch": "1, 8", "gears.tokens": "8, 32"}


def test_exec_blocks_are_engines_of_each_card():
    config = encoder_config({**CARDS, "device_exec_blocks": "2"})
    assert parse(config).devices == ("npu:0", "npu:0", "npu:2", "npu:2")


@pytest.mark.parametrize("text", ["0, 0", "0, 00", "npu:0", "", "0,", "-1"])
def test_invalid_card_numbers_are_refused(text):
    expected = "expected the numbers of cards, each once, e.g. 0, 1"
    assert_fault(encoder_config({"device_ids": text}), expected)


def test_a_static_model_has_gears_for_everything():
    config = parse(encoder_config({"static_model": "1", **GEARS}))
    assert set(config.gears) == {("batch",), ("tokens",)}
    assert parse(encoder_config({"static_model": "0"})).gears == {}


def test_a_single_row_needs_no_gears_to_be_static():
    config = encoder_config({"static_model": "1", "gears.tokens": "32"}, max_batch_size=1)
    assert parse(config).rows == 1


SESSION = {**CARDS, "engine": "ge_session", "workspace_pool_mib": "64"}


def test_a_session_of_ge_has_options_that_the_compiler_of_files_lacks():
    options = {"graph.ge.inputShape": "x:-1", "graph.ge.dynamicDims": "1;2", "ge.aicoreNum": "24"}
    assert parse(encoder_config({**SESSION, **options})).ge_options == {
        "ge.inputShape": "x:-1",
        "ge.dynamicDims": "1;2",
        "ge.aicoreNum": "24",
    }
    for other in ({}, {"engine": "om"}, {"engine": "torch"}):
        fault = "found no option of GE that a model can have 'ge.inputShape'"
        assert_fault(encoder_config({**CARDS, **other, **options}), fault)


def test_a_session_of_ge_needs_the_size_of_its_arena():
    fault = "parameter 'workspace_pool_mib': found none, expected MiB for all that GE allocates"
    assert_fault(encoder_config({**CARDS, "engine": "ge_session"}), fault)


def test_external_weights_are_refused_for_om_files():
    option = {"graph.ge.externalWeight": "1"}
    assert_fault(encoder_config({**CARDS, **option}), "found '1', expected '0': a card's weights")
    assert parse(encoder_config({**SESSION, **option})).ge_options == {"ge.externalWeight": "1"}
    assert parse(encoder_config({**CARDS, "graph.ge.externalWeight": "0"})).ge_options


def test_options_of_the_compiler_are_read_from_any_level():
    options = {
        **CARDS,
        "graph.ge.exec.precision_mode_v2": "origin",
        "session.ge.deterministic": "1",
        "ge.aicoreNum": "24|48",
        "graph.ge.aicoreNum": "24|48",
    }
    assert parse(encoder_config(options)).ge_options == {
        "ge.exec.precision_mode_v2": "origin",
        "ge.deterministic": "1",
        "ge.aicoreNum": "24|48",
    }


# -- flags of ATC ---------------------------------------------------------------------------------


def test_flags_are_passed_on_as_they_are():
    flags = {"atc.op_select_implmode": "high_precision", "atc.keep_dtype": "atc/keep.cfg"}
    assert parse(encoder_config({**CARDS, **flags})).atc_flags == {
        "op_select_implmode": "high_precision",
        "keep_dtype": "atc/keep.cfg",
    }


@pytest.mark.parametrize(
    ("flag", "expected"),
    [
        ("soc_version", "--soc-version, which names the chip"),
        ("dynamic_dims", "limit.<axis> and gears.<axes>, which give the sizes"),
        ("aicore_num", "graph.ge.aicoreNum"),
        ("precision_mode", "graph.ge.exec.precision_mode_v2, or --precision"),
        ("output_type", "none: inputs and outputs are those of the graph and of config.pbtxt"),
        ("external_weight", "none: a card's weights are loaded from the .om"),
        ("--log", "the name of a flag of ATC without its dashes"),
    ],
)
def test_a_reserved_flag_is_refused_with_its_replacement(flag, expected):
    fault = f"parameter 'atc.{flag}': found '1', expected {expected}"
    assert_fault(encoder_config({**CARDS, f"atc.{flag}": "1"}), fault)


@pytest.mark.parametrize("path", ["", "/etc/keep.cfg", "../keep.cfg", "atc/../../keep.cfg"])
def test_files_are_inside_of_the_models_folder(path):
    expected = f"found '{path}', expected a path inside of the model's folder, e.g. keep.cfg"
    assert_fault(encoder_config({**CARDS, "atc.keep_dtype": path}), expected)


@pytest.mark.parametrize("settings", [{}, {**CARDS, "engine": "ge_session"}])
def test_flags_need_a_model_compiled_by_atc(settings):
    expected = "expected a card, and a model.om that ATC compiles"
    assert_fault(encoder_config({**settings, "atc.log": "info"}), expected)
