"""`benchmarks.plain_model` writes models that load, and compares them with the plain one."""

import pytest

pytest.importorskip("torch", reason="the graphs are exported from torch")

from benchmarks.instruments import read_config
from benchmarks.plain_model import Turn, fill, line


def test_each_checkout_has_a_model_beside_the_plain_one(tmp_path):
    names = fill(tmp_path, "classifier", ["before", "after"])
    assert names == ["classifier_plain", "classifier_0", "classifier_1"]
    for name in names:
        compile((tmp_path / name / "1" / "model.py").read_text(), name, "exec")
        config = read_config(tmp_path / name)
        assert [tensor.name for tensor in (*config.input, *config.output)] == ["image", "logits"]
        assert config.input[0].allow_ragged_batch is (name != "classifier_plain")
        assert bool(config.parameters) is (name != "classifier_plain")


@pytest.mark.parametrize(("in_flight", "bar"), [(1, "1"), (8, "1"), (32, "1.3")])
def test_ratios_above_1_mean_that_ge_runtime_is_better(in_flight, bar):
    key = ("triton", "encoder", in_flight, "encoder_0")
    plain = ("triton", "encoder", in_flight, "encoder_plain")
    medians = {key: Turn(300.0, 500.0, 2000.0), plain: Turn(200.0, 1000.0, 3000.0)}
    assert line(key, medians)[-3:] == ["1.50", "2.00", bar]
