"""The live page and the form for requests, in a headless Chromium."""

import shlex
import shutil
import struct
import subprocess
import sys
import wave
from contextlib import ExitStack
from pathlib import Path

import pytest
from google.protobuf import json_format
from PIL import Image
from server.support.model_folders import VECTOR
from support.browser import needs_chromium, open_browser
from support.servers import ROOT, start_reference_server
from tritonclient.grpc.service_pb2 import ModelInferRequest

pytestmark = [pytest.mark.slow, needs_chromium]

#: Returns an image upside down, and text unchanged.
TURNS = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        pb_utils.Logger.log_info("what a model says")
        return [self.answer(request) for request in requests]

    def answer(self, request):
        (given,) = request.inputs()
        return pb_utils.InferenceResponse([pb_utils.Tensor("Y", given.as_numpy()[..., ::-1, :])])
"""
IMAGE = """
backend: "python"
input { name: "X" data_type: TYPE_UINT8 dims: [1, -1, -1] }
output { name: "Y" data_type: TYPE_UINT8 dims: [1, -1, -1] }
"""
#: Returns what it receives.
ECHO = TURNS.replace("        (given,) = request.inputs()\n", "").replace(
    '[pb_utils.Tensor("Y", given.as_numpy()[..., ::-1, :])]',
    '[pb_utils.Tensor(f"{x.name()}_OUT", x.as_numpy()) for x in request.inputs()]',
)
ECHOED = {"TEXT": "STRING", "COUNT": "INT64", "FLAG": "BOOL"}
ECHO_CONFIG = 'backend: "python"' + "".join(
    f"""
    input {{ name: "{name}" data_type: TYPE_{kind} dims: [-1, -1] }}
    output {{ name: "{name}_OUT" data_type: TYPE_{kind} dims: [-1, -1] }}
    """
    for name, kind in ECHOED.items()
)
KEY = "inference:test-key=secret"


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shown") / "models"
    shutil.copytree(ROOT / "examples" / "models", folder)
    broken = "raise ValueError('<b>broken</b>')"
    for name, config, model in (
        ("turns", IMAGE, TURNS),
        ("echo", ECHO_CONFIG, ECHO),
        ("broken", 'backend: "python"' + VECTOR, broken),
    ):
        (folder / name / "1").mkdir(parents=True)
        (folder / name / "config.pbtxt").write_text(config)
        (folder / name / "1" / "model.py").write_text(model)
    return folder


@pytest.fixture(scope="module")
def opened(repository, tmp_path_factory):
    """A server, and a browser's page."""
    flags = {"triton_version": "newest", "exit_on_error": False, "allow_grpc": False}
    with (
        start_reference_server(repository, ready_path="/v2/health/live", **flags) as server,
        open_browser(tmp_path_factory.mktemp("browser")) as page,
    ):
        yield server, page


@pytest.fixture
def live(opened):
    server, page = opened
    page.complaints.clear()
    page.resize(1000, 900)
    page.open(f"http://{server.metrics}/")
    page.wait_for("models.tBodies.length && !log.hidden")
    return page


@pytest.fixture
def form(opened):
    """Return a function that opens the form of a model."""
    server, page = opened

    def form(model: str):
        page.complaints.clear()
        page.resize(1000, 900)
        page.open("about:blank")
        page.open(f"http://{server.http}/try#{model}")
        page.wait_for("fields.length")
        return page

    return form


def sent(page, **values: str) -> str:
    """Fill fields in, send the form, and return the shown response."""
    for name, value in values.items():
        page.evaluate(f"by({name!r}).value = {value!r}")
    page.evaluate("by('answer').replaceChildren(), by('send').click()")
    page.wait_for("by('answer').childElementCount && by('answer').ariaBusy === 'false'")
    return str(page.evaluate("by('answer').innerText"))


def test_the_live_page_shows_models_errors_and_the_log(live):
    assert "6 of 7 models ready" in live.text
    assert live.evaluate("document.querySelectorAll('tbody').length") == 7
    assert "<b>broken</b>" in live.text  # is text
    assert live.evaluate("document.querySelectorAll('b').length") == 0
    # Models with trouble come first.
    assert live.evaluate("document.querySelector('tbody .state').textContent") == "UNAVAILABLE"
    assert "Started Metrics Service" in live.evaluate("lines.innerText")
    assert live.evaluate("lines.scrollTop + lines.clientHeight >= lines.scrollHeight - 4")
    assert live.complaints == []


def test_the_root_of_the_http_port_links_to_both_pages(opened):
    server, page = opened
    page.complaints.clear()
    page.open(f"http://{server.http}/")
    page.wait_for("document.getElementById('server').textContent.startsWith('triton')")
    links = page.evaluate("[...document.links].filter((link) => link.offsetParent).map(String)")
    assert f"http://{server.metrics}/" in links
    assert f"http://{server.http}/try" in links
    assert page.complaints == []


OPEN = "[...document.querySelectorAll('tbody button')].find((b) => b.textContent === {!r}).click()"


def test_numbers_change_and_the_focus_stays(live, opened, form):
    live.evaluate("[...document.querySelectorAll('tbody button')].at(-1).focus()")
    live.evaluate("rows.get('spell 1').cells[3].textContent = 'old'")
    live.evaluate("look()")
    assert live.evaluate("rows.get('spell 1').cells[3].textContent") == "0"
    live.press("Enter")
    assert live.evaluate("document.activeElement.ariaExpanded") == "true"


def test_a_lost_connection_greys_the_numbers_out(live):
    live.evaluate("window.ask = async () => { throw new Error('refused'); }, look()")
    assert "Connection lost since " in live.text
    styles = "(({filter, color}) => [filter, color])(getComputedStyle(document.querySelector(%r)))"
    for part in ("main", "#totals", "#log"):
        assert live.evaluate(styles % part) == ["grayscale(1)", "rgb(107, 107, 107)"]


def show_models(page, models: str, history: str = "[]") -> None:
    """Show a status with `models`, a JavaScript expression of parts of their entries."""
    page.evaluate(
        "window.ask = async () => ({title: 'T', server: 's', at_ms: 1, http_port: 1, log: false,"
        f" machine: {{used: 3 * 2 ** 30, total: 2 ** 33}}, history: {history}, models: "
        f"{models}.map((model) => ({{version: 1, reason: '', state: 'READY', pending: 0,"
        " batches: [], gears: [], padding: null, counts: {success: 1, fail: 0}, ...model}))}),"
        " look()"
    )


def test_many_models_are_found_by_a_search(live):
    show_models(live, "[...Array(400).keys()].map((i) => ({name: `m${i}`, state: 'LOADING'}))")
    count = "document.querySelectorAll('tbody').length"
    assert live.evaluate(count) == 100
    live.evaluate("search.value = 'm39 load', search.dispatchEvent(new Event('input'))")
    assert live.evaluate(count) == 11
    live.evaluate("search.value = '', search.dispatchEvent(new Event('input')), more.click()")
    assert live.evaluate(count) == 400
    assert live.evaluate("more.hidden")
    assert "machine memory used\n3.0 GiB (38 %)" in live.text


def test_the_lines_begin_before_the_page_was_opened(live):
    live.evaluate("before = null")
    show_models(live, "[{name: 'm'}]", "[[-9999, 5, 0, 0], [-4999, 55, 10, 3]]")
    points = "totals.get({!r}).points"
    assert live.evaluate(points.format("model requests/s")) == [[-4999, 10]]
    assert live.evaluate(points.format("failed")) == [[-4999, 2]]
    assert live.evaluate(points.format("waiting")) == [[-4999, 3], [1, 0]]


def test_a_focused_link_stays_in_place_while_its_model_changes(live):
    """A click with Ctrl on the link opens the form in another tab and leaves the focus."""
    show_models(live, "[{name: 'a'}, {name: 'b'}, {name: 'off', state: 'UNAVAILABLE',"
                " reason: 'unloaded'}]")  # fmt: skip
    live.evaluate(OPEN.format("b"))
    live.evaluate("rows.get('b 1').form.focus({focusVisible: false})")
    show_models(live, "[{name: 'a'}, {name: 'b', pending: 7, gears: [['batch 4', 2]]}, {name: 'c'},"
                " {name: 'off', state: 'UNAVAILABLE', reason: 'unloaded'}]")  # fmt: skip
    assert live.evaluate("document.activeElement.href").endswith("/try#b")
    names = "[...document.querySelectorAll('tbody button')].map((b) => b.textContent).join()"
    assert live.evaluate(names) == "b,a,c,off"
    assert "batch 4: 2×" in live.text
    # A reader with the keyboard finds the rows where they were.
    live.evaluate("rows.get('a 1').name.focus({focusVisible: true})")
    show_models(live, "[{name: 'c', pending: 1}, {name: 'b'}, {name: 'a'}, {name: '0'}]")
    assert live.evaluate(names) == "b,a,c,0"


AXE = ROOT / ".cache" / "axe" / "node_modules" / "axe-core" / "axe.min.js"
ALL_RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
CHANGING_RULES = ["color-contrast", "target-size", "scrollable-region-focusable"]
VIOLATIONS = """axe.run({{runOnly: {}, resultTypes: ["violations"]}}).then(({{violations}}) =>
    violations.map(({{id, nodes: [first]}}) =>
        `${{id}}: ${{first.html}} ${{first.failureSummary}}`))"""
OPEN_ALL = "document.querySelectorAll('details').forEach((each) => { each.open = true; })"


@pytest.mark.skipif(not AXE.exists(), reason="axe-core is missing: make clients")
@pytest.mark.parametrize(
    ("port", "path", "ready"),
    [
        ("metrics", "/", "models.tBodies.length && !log.hidden"),
        ("http", "/", "true"),
        ("http", "/docs", "by('models').childElementCount"),
        ("http", "/try#turns", "fields.length"),
    ],
)
def test_the_pages_have_no_known_barriers(opened, port, path, ready):
    """Names, contrast, headings, landmarks, sizes of targets, and no horizontal scrolling."""
    server, page = opened
    page.complaints.clear()
    page.open("about:blank")
    page.open(f"http://{getattr(server, port)}{path}")
    page.wait_for(ready)
    page.evaluate(OPEN_ALL)
    if port == "metrics":
        page.evaluate(OPEN.format("spell"))
    page.evaluate(f"{AXE.read_text()};0")
    for scheme, width, phone, rules in (
        ("light", 1280, False, ALL_RULES),
        ("dark", 390, True, CHANGING_RULES),
    ):
        page.set_media("prefers-color-scheme", scheme)
        page.resize(width, 840, phone=phone)
        assert page.evaluate(VIOLATIONS.format(rules)) == []
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    page.set_media("prefers-color-scheme", "light")
    assert page.complaints == []


def test_the_page_of_the_api_shows_tensors_and_requests(opened):
    server, page = opened
    page.open(f"http://{server.http}/docs")
    page.wait_for("by('models').childElementCount === 6")
    page.evaluate(OPEN_ALL)
    page.wait_for("document.querySelectorAll('pre').length > 6")
    assert "COUNT\tINT64\t[-1, -1]" in page.text
    assert '/v2/models/spell/generate_stream\' -d \'{"WORD":"text"}\'' in page.text


def test_the_form_works_with_the_keyboard_only(form):
    page = form("distance")
    page.evaluate("by('model').focus()")
    page.press("Tab")
    for key in "3 4":
        page.press(key)
    for _ in range(4):  # shape, the button for random values, a sound, more
        page.press("Tab")
    page.press("Tab")
    assert page.evaluate("document.activeElement.id") == "send"
    page.press("Enter")
    page.wait_for("by('answer').innerText.includes('DISTANCE: FP32 [1]')")


def test_the_text_of_a_stream_is_joined_and_the_request_can_be_sent_again(form):
    page = form("spell")
    assert "8 answers" in sent(page, values0="hi there")
    assert page.evaluate("by('answer').querySelector('pre').textContent") == "hi there"
    page.evaluate("by('answer').replaceChildren(), by('sent').querySelector('button').click()")
    page.wait_for("by('answer').querySelectorAll('pre').length === 9")
    assert page.complaints == []


def test_the_steps_of_a_sequence_follow_each_other(form):
    page = form("running_sum")
    for value, is_last, total in ((1, False, 1), (2, False, 3), (3, True, 6), (5, False, 5)):
        page.evaluate(f"by('sequence-end').checked = {str(is_last).lower()}")
        answer = sent(page, values0=str(value))
        assert answer.splitlines()[-3:-1] == [str(total), ""], answer
    assert page.evaluate("by('sequence-id').value") == "2"


ECHO_VALUES = {
    "values0": "it's\n$HOME true", "shape0": "2, 1",
    "values1": "9223372036854775807 1 3, 2 9 4", "shape1": "2, 3",
    "values2": "true false", "shape2": "1, 2",
}  # fmt: skip


@pytest.mark.parametrize("button", ["curl", "python"])
def test_a_request_can_be_copied_as_a_command_or_a_program(form, button):
    page = form("echo")
    for name, value in ECHO_VALUES.items():
        page.evaluate(f"by({name!r}).value = {value!r}")
    page.evaluate(f"by({button!r}).click()")
    page.wait_for("by('answer').querySelector('pre')")
    text = page.evaluate("by('answer').querySelector('pre').textContent")
    command = ["bash", "-c", text] if button == "curl" else [sys.executable, "-c", text]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    for value in ("it's", "$HOME true", "9223372036854775807"):
        assert value in shown
    assert "true,false" in shown if button == "curl" else "True False" in " ".join(shown.split())


def test_a_request_can_be_copied_for_grpcurl(form):
    page = form("echo")
    values = ECHO_VALUES | {
        "values1": "9223372036854775807", "shape1": "1, 1", "parameters": '{"p": 2}',
    }  # fmt: skip
    for name, value in values.items():
        page.evaluate(f"by({name!r}).value = {value!r}")
    page.evaluate("by('grpcurl').dataset.port = '8001', by('grpcurl').click()")
    page.wait_for("by('answer').querySelector('pre')")
    _, command = page.evaluate("by('answer').querySelector('pre').textContent").splitlines()
    words = shlex.split(command)
    assert words[-2:] == ["127.0.0.1:8001", "inference.GRPCInferenceService/ModelInfer"]
    sent = json_format.Parse(words[words.index("-d") + 1], ModelInferRequest())
    assert (sent.model_name, sent.parameters["p"].int64_param) == ("echo", 2)
    text, count, flag = (each.contents for each in sent.inputs)
    assert list(text.bytes_contents) == [b"it's", b"$HOME true"]
    assert list(count.int64_contents) == [9223372036854775807]
    assert list(flag.bool_contents) == [True, False]


def test_all_rows_are_shown_in_order_or_by_size(form):
    page = form("echo")
    answer = sent(page, **ECHO_VALUES)
    assert "COUNT_OUT: INT64 [2, 3]" in answer
    assert "Row 2 of 2" in answer
    row = "[...by('answer').querySelectorAll('table')].at(1).innerText"
    assert page.evaluate(row).split()[2:] == ["0", "2", "1", "9", "2", "4"]
    page.evaluate("[...by('answer').querySelectorAll('button')][0].click()")
    assert page.evaluate(row).split()[2:] == ["1", "9", "2", "4", "0", "2"]


def test_the_samples_of_a_sound_become_values(form, tmp_path):
    with wave.open(str(tmp_path / "sound.wav"), "wb") as file:
        file.setparams((1, 2, 16000, 0, "NONE", ""))
        file.writeframes(struct.pack("<4h", 0, 16384, -16384, 8192))
    page = form("distance")
    page.evaluate("document.querySelector('fieldset details').open = true")
    page.choose_file("input[accept='audio/*']", tmp_path / "sound.wav")
    page.wait_for("by('values0').value")
    values = [float(value) for value in page.evaluate("by('values0').value").split(",")]
    assert values == pytest.approx([0, 0.5, -0.5, 0.25], abs=1e-4)


def test_an_image_is_sent_and_drawn(form, tmp_path: Path):
    pixels = Image.new("RGB", (12, 9))
    pixels.putpixel((3, 1), (255, 255, 255))
    pixels.save(tmp_path / "image.png")
    page = form("turns")
    page.choose_file("input[type=file]", tmp_path / "image.png")
    assert "Y: UINT8 [1, 9, 12]" in sent(page)
    bright = page.evaluate(
        "(() => { const c = by('answer').querySelector('canvas');"
        " const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;"
        " return [...Array(c.width * c.height).keys()].filter((i) => d[4 * i] > 200); })()"
    )
    assert bright == [7 * 12 + 3]  # the second row is now the last but one
    edge = (
        "boxes(by('inputs').querySelector('canvas'), {{name: 'b', shape: {0}, data: {1}}})"
        ".getContext('2d').getImageData(6, 6, 1, 1).data[0]"
    )
    assert page.evaluate(edge.format([1, 4], [0.5, 0.5, 1, 1])) > 100  # red on black
    assert page.evaluate(edge.format([1, 3, 2], [6, 0, 6, 8, 12, 0])) > 100
    assert page.evaluate(edge.format([1, 3, 2], [0, 0, 2, 0, 0, 2])) < 100
    assert page.complaints == []


@pytest.mark.parametrize(
    ("model", "values", "expected"),
    [
        ("distance", "3, four", "POINT: 'four' is no number"),
        ("turns", "", "X: no values; enter values or choose an image"),
        ("square_root", "1, 2, 3", "500: Failed to parse 'data' field: shape does not match"),
    ],
)
def test_errors_are_shown(form, model, values, expected):
    page = form(model)
    page.evaluate("by('shape0').value = '1, 7'")
    assert expected in sent(page, values0=values)


VERBOSITY = "fetch('/v2/logging').then((r) => r.json()).then((s) => s.log_verbose_level)"


def test_a_page_of_another_origin_changes_nothing(opened):
    server, page = opened
    page.open(f"http://{server.metrics}/metrics")  # another port is another origin
    page.evaluate(
        f"fetch('http://{server.http}/v2/logging', "
        "{method: 'POST', mode: 'no-cors', body: '{\"log_verbose_level\": 1}'}).then(() => 1)"
    )
    page.open(f"http://{server.http}/try")
    assert page.evaluate(VERBOSITY) == 0
    change = "fetch('/v2/logging', {method: 'POST', body: '{}'}).then((r) => r.status)"
    assert page.evaluate(change) == 200  # the same origin


def test_a_name_that_its_owner_points_here_reads_nothing(opened):
    server, page = opened
    for port, path in ((server.http, "/v2"), (server.metrics, "/status.json")):
        page.open(f"http://evil.example:{port.rpartition(':')[2]}{path}")
        assert "found Host 'evil.example:" in page.text


def test_the_form_sends_the_header_of_a_restricted_api(opened, repository):
    _, page = opened
    flags = {"triton_version": "newest", "exit_on_error": False, "allow_grpc": False}
    with ExitStack() as stack:
        server = stack.enter_context(
            start_reference_server(
                *(repository,), ready_path="/v2/health/live", http_restricted_api=KEY, **flags
            )
        )
        page.open(f"http://{server.http}/try#distance")
        page.wait_for("fields.length")
        assert "403: This API is restricted, expecting header 'test-key'" in sent(
            page, values0="3 4"
        )
        assert "DISTANCE" in sent(page, header="test-key", secret="secret")
