"""The project's own graphs as simulated models: results equal those of their .onnx files."""

import os
from pathlib import Path

import numpy as np
import pytest
from simulator.support.driving import ok
from simulator.support.models import SOC, Loaded

from ascend_simulator import atc

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
onnxruntime = pytest.importorskip("onnxruntime")

REPOSITORY = Path(__file__).parents[2] / "model_repository"


def encoder(gear):
    rows, tokens = gear[:2]
    rng = np.random.default_rng(rows)
    lengths = rng.integers(1, tokens + 1, rows)
    mask = (np.arange(tokens) < lengths[:, None]).astype(np.int64)
    return rng.integers(0, 30_000, (rows, tokens)), mask


def digits(gear):
    rng = np.random.default_rng(gear[0])
    return rng.random(gear[:4], np.float32), np.ones(gear[4:], np.float32)


def embedding(gear):
    return (np.random.default_rng(gear[0]).standard_normal((gear[0], 384)).astype(np.float32),)


MODELS = {
    "text_encoder": (
        "input_ids:-1,-1;attention_mask:-1,-1",
        [(1, 16, 1, 16), (3, 32, 3, 32), (8, 24, 8, 24)],
        encoder,
    ),
    "ge_classifier": (
        "image:-1,1,-1,-1;mask:-1,-1,-1",
        [(1, 1, 32, 48, 1, 32, 48), (4, 1, 64, 64, 4, 64, 64)],
        digits,
    ),
    "text_classifier": ("embedding:-1,384", [(1, 384), (4, 384), (16, 384)], embedding),
}


@pytest.fixture(scope="module", params=MODELS)
def real(request, tmp_path_factory):
    """A name, its .om at each precision, and its file in ONNX Runtime."""
    source = REPOSITORY / request.param / "1" / "model.onnx"
    if not source.is_file():
        pytest.skip(f"{source} is not built: make models")
    shape, gears, _ = MODELS[request.param]
    folder = tmp_path_factory.mktemp(request.param)
    fixed = [place for place, dim in enumerate(_flat(shape)) if dim != "-1"]
    values = ";".join(
        ",".join(str(dim) for place, dim in enumerate(gear) if place not in fixed) for gear in gears
    )
    paths = {
        precision: str(
            atc.run(
                [
                    "--framework=5",
                    f"--model={source}",
                    f"--output={folder / precision}",
                    f"--soc_version={SOC}",
                    "--input_format=ND",
                    f"--input_shape={shape}",
                    f"--dynamic_dims={values}",
                    f"--precision_mode_v2={precision}",
                ]
            )
        )
        for precision in ("origin", "fp16")
    }
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(source), options, providers=["CPUExecutionProvider"])
    return request.param, paths, session


def _flat(shape):
    return [dim for part in shape.split(";") for dim in part.split(":")[1].split(",")]


def answers(acl, real, precision):
    """For each gear the results of the model and of its .onnx."""
    name, paths, session = real
    _, gears, make = MODELS[name]
    loaded = Loaded(acl, paths[precision])
    for gear in (*gears, gears[0]):
        arrays = make(gear)
        ok(loaded.set_dims(*gear))
        for place, array in enumerate(arrays):
            loaded.write(place, array)
        ok(loaded.execute())
        names = [value.name for value in session.get_inputs()]
        (expected,) = session.run(None, dict(zip(names, arrays, strict=True)))
        yield loaded.read(0), expected
    loaded.release()


@pytest.mark.brute_force
def test_origin_answers_are_equal_bit_for_bit(acl, real):
    for found, expected in answers(acl, real, "origin"):
        assert found.tobytes() == expected.tobytes()


@pytest.mark.brute_force
def test_fp16_answers_are_close_and_of_half_precision(acl, real):
    for found, expected in answers(acl, real, "fp16"):
        assert found.tobytes() != expected.tobytes()
        assert found.tobytes() == found.astype(np.float16).astype(np.float32).tobytes()
        np.testing.assert_allclose(found, expected, atol=2e-2 * np.abs(expected).max())


@pytest.mark.brute_force
def test_fp16_takes_half_the_weights(acl, real):
    _, paths, _ = real
    _, origin = ok(acl.mdl.query_size(paths["origin"]))
    _, half = ok(acl.mdl.query_size(paths["fp16"]))
    assert half < 0.6 * origin
