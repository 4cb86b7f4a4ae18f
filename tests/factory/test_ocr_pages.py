"""Between the graphs of ocr_pipeline: images cut, lines found, texts spelt, pages read."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.servers import ROOT

from model_factory.ocr_accuracy import PageScore, model_module, page_pixels, reader, score
from model_factory.ocr_pages import Page, read_pages

boxes = model_module("ocr_pipeline", "boxes")
pages = model_module("ocr_pipeline", "page")
pixels = model_module("ocr_pipeline", "pixels")
ctc = model_module("ocr_recognition", "ctc")

REPOSITORY = ROOT / "model_repository"


def rectangle(middle, size, degrees):
    """[4, 2]: corners clockwise from the top left one."""
    angle = np.radians(degrees)
    right = np.array([np.cos(angle), np.sin(angle)]) * size[0] / 2
    down = np.array([-np.sin(angle), np.cos(angle)]) * size[1] / 2
    corners = np.array([-right - down, right - down, right + down, down - right])
    return corners + middle


def covered(box, height, width):
    """FP32 [height, width]: 1 where the middle of a pixel is in the box."""
    y, x = np.mgrid[0:height, 0:width] + 0.5
    places = np.stack([x, y], axis=-1) - box[0]
    right, down = box[1] - box[0], box[3] - box[0]
    along, across = places @ right / (right @ right), places @ down / (down @ down)
    inside = (along >= 0) & (along <= 1) & (across >= 0) & (across <= 1)
    return inside.astype(np.float32)


def test_an_image_of_the_right_size_stays_as_it_is():
    image = np.random.default_rng(1).integers(0, 256, (7, 9, 3), np.uint8)
    assert pixels.resized(image, 7, 9) is image


@given(*[st.integers(1, 40)] * 4, st.integers(0, 255))
def test_one_colour_stays_that_colour_at_any_size(height, width, rows, columns, colour):
    image = np.full((height, width, 3), colour, np.uint8)
    resized = pixels.resized(image, rows, columns)
    assert resized.shape == (rows, columns, 3)
    assert (resized == colour).all()


def test_a_fine_pattern_becomes_its_mean():
    image = np.zeros((64, 64, 3), np.uint8)
    image[::2] = 200
    resized = pixels.resized(image, 8, 8)
    assert np.abs(resized[1:-1].astype(int) - 100).max() <= 2


def test_an_image_is_extended_by_its_last_pixels():
    image = np.arange(12, dtype=np.uint8).reshape(2, 2, 3)
    extended = pixels.extended(image, 3, 4)
    assert (extended[:2, :2] == image).all()
    assert (extended[2, 3] == image[1, 1]).all()


def test_a_box_of_whole_pixels_is_cut_as_it_is():
    image = np.random.default_rng(2).integers(0, 256, (30, 40, 3), np.uint8)
    box = np.array([[5, 7], [25, 7], [25, 17], [5, 17]])
    assert (pixels.cut(image, box, 10, 20) == image[7:17, 5:25]).all()


def test_a_box_that_begins_at_another_corner_is_turned():
    image = np.random.default_rng(3).integers(0, 256, (30, 40, 3), np.uint8)
    box = np.array([[5, 7], [25, 7], [25, 17], [5, 17]])
    turned = pixels.cut(image, np.roll(box, 2, axis=0), 10, 20)
    assert (turned == image[7:17, 5:25][::-1, ::-1]).all()


def test_what_is_beyond_the_edge_is_the_edge():
    image = np.full((4, 4, 3), 9, np.uint8)
    assert (pixels.cut(image, np.array([[-5, -5], [9, -5], [9, 9], [-5, 9]]), 6, 6) == 9).all()


@pytest.mark.brute_force
@settings(max_examples=50)
@given(
    degrees=st.floats(-40, 40),
    length=st.floats(40, 120),
    thickness=st.floats(8, 20),
    place=st.tuples(st.floats(90, 110), st.floats(90, 110)),
)
def test_a_core_at_any_angle_grows_into_its_line(degrees, length, thickness, place):
    core = rectangle(place, (length, thickness), degrees)
    (line,) = boxes.lines(covered(core, 200, 200))
    growth = 2 * boxes.GROWTH * length * thickness / (2 * (length + thickness))
    expected = rectangle(place, (length + growth, thickness + growth), degrees)
    # Pixels stick out of a core by up to 0.7 on each side, hairs are closed by 1, and both grow.
    assert np.abs(line - expected).max() < 6


def test_lines_apart_are_two_and_a_hair_between_cores_is_none():
    probability = np.zeros((40, 100), np.float32)
    probability[5:12, 5:45] = probability[5:12, 46:95] = 0.9
    probability[25:32, 5:40] = probability[25:32, 60:95] = 0.9
    assert len(boxes.lines(probability)) == 3


def test_cores_of_one_winding_shape_are_one():
    probability = np.zeros((40, 40), np.float32)
    probability[5:30, 5:8] = probability[27:30, 5:30] = probability[5:30, 27:30] = 0.9
    assert len(boxes.lines(probability)) == 1


@pytest.mark.parametrize(
    "core",
    [
        np.zeros((20, 20), np.float32),
        np.full((20, 20), 0.29, np.float32),
        np.pad(np.full((8, 12), 0.4, np.float32), 4),  # of a core, yet not of a line
        np.pad(np.full((1, 1), 0.9, np.float32), 4),
    ],
    ids=["nothing", "under the threshold", "unsure", "a speck"],
)
def test_no_line_is_found(core):
    assert boxes.lines(core).shape == (0, 4, 2)


@given(st.integers(0, 359))
def test_reading_order_follows_the_page_however_it_lies(degrees):
    middles = [(x, y) for y in (0, 30, 60) for x in (0, 200)]
    angle = np.radians(degrees)
    turn = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
    page = np.array([rectangle(middle, (150, 20), 0) @ turn for middle in middles])
    mixed = np.random.default_rng(degrees).permutation(len(page))
    assert (mixed[boxes.reading_order(page[mixed])] == np.arange(len(page))).all()


def test_pages_larger_than_the_limit_are_searched_smaller():
    page = pages.Page(np.zeros((2560, 100, 3), np.uint8))
    assert page.to_search().shape == (1, 1280, 64, 3)
    probability = np.zeros((1, 1280, 64), np.float32)
    probability[0, 100:110, 5:45] = 0.9
    page.found(probability)
    assert np.abs(page.boxes[0].mean(axis=0) - (50, 210)).max() < 3


def test_a_line_in_what_the_page_was_extended_by_is_none():
    page = pages.Page(np.zeros((40, 40, 3), np.uint8))
    probability = np.zeros((1, 64, 64), np.float32)
    probability[0, 48:56, 5:35] = 0.9
    page.found(probability)
    assert len(page.boxes) == 0


def test_the_width_of_a_line_depends_on_itself_alone():
    page = pages.Page(np.zeros((400, 3000, 3), np.uint8))
    page.boxes = np.array(
        [
            rectangle((200, 50), (300, 48), 0),
            rectangle((200, 150), (290, 48), 0),
            rectangle((1500, 250), (3000, 20), 0),  # longer than any: squeezed
            rectangle((100, 250), (30, 200), 0),  # written downwards: on its side
        ],
        np.float32,
    )
    groups = {lines.shape: indices for indices, lines in page.to_read()}
    assert groups == {(3, 48, 320, 3): [0, 1, 3], (1, 48, 1920, 3): [2]}


def test_steps_spell_a_text():
    letters = np.array(["", "l", "o", "世"], object)
    characters = np.array([[1, 1, 0, 1, 2, 2, 0, 3], [0, 0, 0, 0, 0, 0, 0, 0]])
    probabilities = np.array([[0.8, 0.1, 0.1, 0.6, 1, 0.1, 0.1, 0.4], [1] * 8], np.float32)
    assert ctc.texts(characters, letters).tolist() == ["llo世".encode(), b""]
    assert ctc.scores(characters, probabilities).tolist() == pytest.approx([0.7, 0])


def test_characters_lie_in_the_file_by_their_numbers():
    letters = ctc.alphabet(REPOSITORY / "ocr_recognition" / "1" / "characters.txt")
    assert len(letters) == 6625
    assert [letters[0], letters[-1]] == ["", " "]
    assert {len(letter) for letter in letters[1:]} == {1}


def test_mistakes_are_counted():
    page = Page("x", ROOT, ("a cat sat", "你好。", "gone"))
    found = ["acatsat", "你妤。"]
    assert score(page, found) == PageScore("x", lines=3, exact=1, characters=14, mistakes=6)


@pytest.mark.slow
def test_pages_are_read_as_well_as_the_documentation_says():
    graphs = {
        model: (REPOSITORY / model / "1" / "model.onnx").read_bytes()
        for model in ("ocr_detection", "ocr_angle", "ocr_recognition")
    }
    letters = ctc.alphabet(REPOSITORY / "ocr_recognition" / "1" / "characters.txt")
    read = reader(graphs, letters)
    (section,) = re.findall(
        r"^## Text on pages\n(.*?)^## ", (ROOT / "docs/models.md").read_text(), re.M | re.S
    )
    table = dict(re.findall(r"^\| `(\w+)` \| (\d.*?) \|$", section, re.M))
    scores = [score(page, read(page_pixels(page))) for page in read_pages()]
    assert {
        s.name: f"{1 - s.mistakes / s.characters:.3f} | {s.exact} of {s.lines}" for s in scores
    } == table
