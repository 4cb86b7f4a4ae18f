"""The digit classifier's artifacts: answers that batch-mates and padding cannot change."""

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model_factory import artifacts, recipes
from model_factory.digits_evaluation import pad

pytestmark = pytest.mark.brute_force

MODEL = Path(__file__).parents[2] / "model_repository" / "ge_classifier"

SIZES = st.lists(st.tuples(st.integers(1, 40), st.integers(1, 40)), min_size=2, max_size=6)
SEEDS = st.integers(0, 2**32 - 1)
POISONS = [np.nan, np.inf, -np.inf, np.finfo(np.float32).max, -1.0]


@pytest.fixture(scope="module")
def onnx_classify(tmp_path_factory):
    path = tmp_path_factory.mktemp("onnx") / "model.onnx"
    artifacts.write_digits(path)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return lambda image, mask: session.run(["logits"], {"image": image, "mask": mask})[0]


@pytest.fixture(scope="module")
def torch_classify():
    torch = pytest.importorskip("torch", reason="the torch twin needs torch")
    (recipe,) = (recipe for recipe in artifacts.DIGITS if recipe.needs_torch)
    recipes.build_all([recipe], MODEL.parent)
    module = torch.export.load(recipe.target(MODEL.parent)).module()

    def classify(image, mask):
        with torch.inference_mode():
            return module(torch.from_numpy(image), torch.from_numpy(mask)).numpy()

    return classify


def _noise_images(sizes, seed):
    rng = np.random.default_rng(seed)
    return [rng.random(size, np.float32) for size in sizes]


@settings(max_examples=25)
@given(SIZES, SEEDS, st.sampled_from(POISONS))
def test_alone_and_in_a_poisoned_batch_an_image_gets_the_same_answer(
    onnx_classify, sizes, seed, poison
):
    images = _noise_images(sizes, seed)
    batch, mask = pad(images)
    batch[:, 0][mask == 0] = poison
    together = onnx_classify(batch, mask)
    alone = np.concatenate([onnx_classify(*pad([image])) for image in images])
    np.testing.assert_allclose(together, alone, atol=1e-5)
    np.testing.assert_array_equal(together.argmax(axis=1), alone.argmax(axis=1))


@settings(max_examples=5)
@given(SIZES, SEEDS, st.sampled_from(POISONS))
def test_torch_twin_gives_the_answers_of_the_onnx_graph(
    onnx_classify, torch_classify, sizes, seed, poison
):
    batch, mask = pad(_noise_images(sizes, seed))
    batch[:, 0][mask == 0] = poison
    expected = onnx_classify(batch, mask)
    np.testing.assert_allclose(torch_classify(batch, mask), expected, atol=1e-5)


@pytest.mark.parametrize("size", [(1, 1), (1, 70), (70, 1), (256, 256)])
@pytest.mark.parametrize("classify", ["onnx_classify", "torch_classify"])
def test_any_size_is_classified(request, classify, size):
    logits = request.getfixturevalue(classify)(*pad(_noise_images([size], seed=0)))
    assert (logits.dtype, logits.shape) == (np.float32, (1, 10))
    assert np.isfinite(logits).all()


@pytest.mark.parametrize("classify", ["onnx_classify", "torch_classify"])
def test_a_row_of_padding_only_stays_finite_and_disturbs_nobody(request, classify):
    run = request.getfixturevalue(classify)
    image, mask = pad(_noise_images([(9, 12), (9, 12)], seed=0))
    expected = run(image[:1], mask[:1])
    mask[1] = 0
    logits = run(image, mask)
    assert np.isfinite(logits).all()
    np.testing.assert_allclose(logits[:1], expected, atol=1e-5)


def test_equal_parameters_give_equal_onnx_files(tmp_path):
    for name in ("first.onnx", "second.onnx"):
        artifacts.write_digits(tmp_path / name)
    assert (tmp_path / "first.onnx").read_bytes() == (tmp_path / "second.onnx").read_bytes()


def test_recipes_name_the_artifacts_and_files_that_exist():
    assert [(recipe.file, recipe.needs_torch) for recipe in artifacts.DIGITS] == [
        ("model.onnx", False),
        ("model.pt2", True),
    ]
    for recipe in artifacts.DIGITS:
        assert recipe.target(MODEL.parent).parent == MODEL / "1"
        assert recipe.digest()  # reads every input
