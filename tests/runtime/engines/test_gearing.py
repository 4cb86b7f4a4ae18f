import pytest
from runtime.support.configs import encoder_config

from ge_runtime.batching.gears import Gear
from ge_runtime.config import RuntimeConfig
from ge_runtime.engines.gearing import Gearing
from ge_runtime.planning.histogram import Histogram


def gearing(tmp_path, parameters=None, **more):
    config = RuntimeConfig.parse(encoder_config(parameters, **more), cores=1)
    return Gearing.of(config, tmp_path)


def test_without_gears_memory_is_planned_for_the_limits(tmp_path):
    found = gearing(tmp_path)
    assert found.tables == {}
    assert found.planned == (Gear(8, {"tokens": 32}),)
    assert found.report == ()


def test_declared_gears_are_taken_as_they_are(tmp_path):
    found = gearing(tmp_path, {"gears.tokens": "8, 32", "gears.batch": "1, 8"})
    assert found.tables == {("tokens",): ((8,), (32,)), ("batch",): ((1,), (8,))}
    sizes = {(gear.rows, gear.extents["tokens"]) for gear in found.planned}
    assert sizes == {(1, 8), (1, 32), (8, 8), (8, 32)}
    assert found.gears.fit(3, {"tokens": 9}) == Gear(8, {"tokens": 32})
    assert found.report == ()


def test_derived_gears_are_powers_of_two_without_a_histogram(tmp_path):
    found = gearing(tmp_path, {"gears.tokens": "auto 3", "histogram": "sizes.json"})
    assert found.tables == {("tokens",): ((8,), (16,), (32,))}
    assert found.report == (
        'gears.tokens = "8, 16, 32": powers of two, because there is no histogram',
    )


def test_derived_gears_follow_the_recorded_sizes(tmp_path):
    histogram = Histogram(["batch", "tokens"])
    for tokens in (3, 5):
        histogram.add((1, tokens), 500)
    histogram.save(tmp_path / "sizes.json")
    found = gearing(tmp_path, {"gears.tokens": "auto 3", "histogram": "sizes.json"})
    assert found.tables == {("tokens",): ((3,), (5,), (32,))}
    assert len(found.report) == 1
    assert "1,000 recorded sizes" in found.report[0]


def test_derived_gears_have_sizes_that_executions_have(tmp_path):
    histogram = Histogram(["batch", "tokens"])
    for tokens in (3, 5, 17):
        histogram.add((1, tokens), 500)
    histogram.save(tmp_path / "sizes.json")
    sizes = {"gears.tokens": "auto 4", "align.tokens": "8", "min.tokens": "10"}
    found = gearing(tmp_path, {**sizes, "histogram": "sizes.json"})
    assert found.tables == {("tokens",): ((16,), (24,), (32,))}


@pytest.mark.parametrize("text", ["no histogram", "[]"])
def test_histogram_that_cannot_be_read_is_reported_and_not_used(tmp_path, text):
    (tmp_path / "sizes.json").write_text(text)
    found = gearing(tmp_path, {"gears.tokens": "auto 3", "histogram": "sizes.json"})
    assert found.tables == {("tokens",): ((8,), (16,), (32,))}
    first, second = found.report
    assert first.startswith(f"the histogram is not used: {tmp_path / 'sizes.json'}: not a")
    assert second.endswith("because there is no histogram")


def test_histogram_of_other_axes_is_reported_and_not_used(tmp_path):
    Histogram(["batch", "height"]).save(tmp_path / "sizes.json")
    found = gearing(tmp_path, {"gears.tokens": "32", "histogram": "sizes.json"})
    assert found.histogram is None
    assert found.report == (
        "the histogram is not used: found axes batch, height, expected batch, tokens",
    )


def test_histogram_is_given_where_all_gears_are_declared(tmp_path):
    histogram = Histogram(["batch", "tokens"])
    histogram.add((1, 5), 3)
    histogram.save(tmp_path / "sizes.json")
    found = gearing(tmp_path, {"gears.tokens": "32", "histogram": "sizes.json"})
    assert found.histogram.counts() == {(1, 5): 3}
    assert found.report == ()


def test_fallback_is_planned_for_requests_that_no_gear_holds(tmp_path):
    parameters = {"gears.tokens": "8, 16", "oversize": "fallback"}
    largest = Gear(8, {"tokens": 32})
    assert gearing(tmp_path, parameters).planned == (
        Gear(8, {"tokens": 8}),
        Gear(8, {"tokens": 16}),
        largest,
    )
    parameters = {"gears.tokens": "8, 32", "oversize": "fallback"}
    assert gearing(tmp_path, parameters).planned == (Gear(8, {"tokens": 8}), largest)
