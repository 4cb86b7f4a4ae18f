"""The shipped parameters keep their claim, and the training that made them still runs."""

import numpy as np
import onnxruntime
import pytest

from model_factory import artifacts, digits_parameters
from model_factory.digits_evaluation import accuracy_by_bucket, pad
from model_factory.digits_images import Sources, draw_disturbed, draw_plain, load_sources
from model_factory.digits_parameters import Claim

pytestmark = pytest.mark.brute_force

CLAIM = Claim(plain=(0.5, 0.75), disturbed=(0.25, 0.5), seed=1, steps=2, parameters=3)


@pytest.fixture
def parameters():
    rng = np.random.default_rng(0)
    return {
        name: rng.random(shape, np.float32) for name, shape in digits_parameters.shapes().items()
    }


def test_shipped_parameters_are_as_accurate_as_they_claim(tmp_path):
    pytest.importorskip("sklearn", reason="the held-out digits come with scikit-learn")
    artifacts.write_digits(tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(
        tmp_path / "model.onnx", providers=["CPUExecutionProvider"]
    )
    held_out = load_sources(held_out=True)
    parameters, claim = digits_parameters.load()

    def classify(image, mask):
        return session.run(["logits"], {"image": image, "mask": mask})[0]

    plain = accuracy_by_bucket(classify, held_out, draw_plain)
    disturbed = accuracy_by_bucket(classify, held_out, draw_disturbed)
    # One drawing of a bucket's 696 may fall on the other side of a tie in rounding.
    assert plain == pytest.approx(claim.plain, abs=0.002)
    assert disturbed == pytest.approx(claim.disturbed, abs=0.002)
    assert np.mean(plain) >= 0.97
    assert sum(array.size for array in parameters.values()) == claim.parameters


def test_saved_parameters_and_claim_load_again(tmp_path, parameters):
    digits_parameters.save(tmp_path / "p.npz", parameters, CLAIM)
    loaded, claim = digits_parameters.load(tmp_path / "p.npz")
    assert claim == CLAIM
    assert loaded.keys() == parameters.keys()
    for name, array in parameters.items():
        np.testing.assert_array_equal(loaded[name], array)


def test_equal_parameters_give_equal_files(tmp_path, parameters):
    shuffled = dict(reversed(parameters.items()))
    digits_parameters.save(tmp_path / "first.npz", parameters, CLAIM)
    digits_parameters.save(tmp_path / "second.npz", shuffled, CLAIM)
    assert (tmp_path / "first.npz").read_bytes() == (tmp_path / "second.npz").read_bytes()


@pytest.mark.parametrize("damage", ["missing", "shape", "dtype"])
def test_parameters_of_another_network_are_refused(tmp_path, parameters, damage):
    if damage == "missing":
        del parameters["hidden.bias"]
    elif damage == "shape":
        parameters["hidden.bias"] = parameters["hidden.bias"][:-1]
    else:
        parameters["hidden.bias"] = parameters["hidden.bias"].astype(np.float64)
    with pytest.raises(ValueError, match=r"to save: found .*hidden.* expected .*hidden\.bias"):
        digits_parameters.save(tmp_path / "p.npz", parameters, CLAIM)


def test_padding_keeps_images_top_left():
    image, mask = pad([np.ones((1, 3), np.float32), np.full((2, 2), 5, np.float32)])
    assert image.tolist() == [[[[1, 1, 1], [0, 0, 0]]], [[[5, 5, 0], [5, 5, 0]]]]
    assert mask.tolist() == [[[1, 1, 1], [0, 0, 0]], [[1, 1, 0], [1, 1, 0]]]


def test_training_runs_and_writes_parameters_with_a_claim(tmp_path, monkeypatch):
    pytest.importorskip("sklearn", reason="training needs scikit-learn")
    torch = pytest.importorskip("torch", reason="training needs torch")
    from model_factory import digits_train

    def load_few(*, held_out):
        sources = load_sources(held_out=held_out)
        return Sources(sources.images[:32], sources.labels[:32])

    monkeypatch.setattr(digits_train, "load_sources", load_few)
    path = tmp_path / "p.npz"
    threads = torch.get_num_threads()
    with torch.random.fork_rng(devices=[]):
        digits_train.main(["--steps", "3", "--seed", "5", "--output", str(path)])
    torch.set_num_threads(threads)
    _, claim = digits_parameters.load(path)
    assert (claim.seed, claim.steps) == (5, 3)
    assert len(claim.plain) == len(claim.disturbed) == 4
