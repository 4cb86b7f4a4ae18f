"""Reports: pages that are well formed and self-contained, Markdown and JUnit."""

import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import numpy as np
import pytest
from replay.serving import serving
from replay.traffic import MS, inputs, response, write_capture

from triton_replay.__main__ import main
from triton_replay.capture.records import Response
from triton_replay.comparing.latencies import percentiles
from triton_replay.reporting.plots import HEIGHT, WIDTH, latency_plot
from triton_replay.reporting.review import Check, ModelReview, Review, junit, markdown


class Page(HTMLParser):
    """A parser that collects tags, addresses and text."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.addresses, self.text = [], [], ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.addresses += [value for name, value in attrs if name in ("href", "src")]

    def handle_data(self, data):
        self.text += data


def write_page(tmp_path, answering):
    values = inputs(60)
    a = write_capture(tmp_path / "<b>a.trc", lambda n, x: x, values)
    b = write_capture(tmp_path / "b.trc", answering, values)
    code = main(["compare", str(a), str(b), f"--html={tmp_path / 'page.html'}"])
    return code, Page((tmp_path / "page.html").read_text())


def test_a_page_is_self_contained_and_shows_groups_and_latencies(tmp_path):
    def answering(number, x):
        if number == 4:
            return Response(number, 0, 1, 500, (("X", "1"),), 2, b"{}")
        return response(number, x + np.float32(len(x) > 2), took=3 * MS)

    code, page = write_page(tmp_path, answering)
    assert code == 1
    assert page.addresses == []
    assert page.tags.count("polyline") == 2
    assert "the answers to 31 differ" in page.text
    assert "only where rows is 3 or more: 30 of 30 that differ, 0 of 29 that" in page.text
    assert "mstatus 50001" in page.text
    assert "Without 1 of 60 requests that failed in A or B." in page.text
    assert "No verdict: A and B ran at different times" in page.text


def test_a_page_without_differences_reports_it_and_escapes_names(tmp_path):
    code, page = write_page(tmp_path, lambda n, x: x)
    assert code == 0
    assert "the answers to 0 differ" in page.text
    assert "<b>a.trc" in page.text
    assert "b" not in page.tags


def test_a_plot_contains_all_points_and_ends_with_the_largest():
    values = [n * n * 1000 + 5000 for n in range(5000)]
    plot = latency_plot({"a": values, "b": [7_000_000]})
    first, second = re.findall(r'points="([^"]*)"', plot)
    points = [tuple(map(float, pair.split(","))) for pair in first.split()]
    assert len(points) <= 301
    assert points == sorted(points, key=lambda point: (point[0], -point[1]))
    assert all(0 <= x <= WIDTH and 0 <= y <= HEIGHT for x, y in points)
    assert len(second.split()) == 1
    assert latency_plot({"a": [], "b": []}) == ""


def test_the_steps_of_a_logarithmic_axis_have_the_right_width():
    plot = latency_plot({"a": [8_000_000, 900_000_000]})
    places = re.findall(r'y="([\d.]+)" text-anchor="end">(\d+) ms<', plot)
    heights = {int(tick): float(y) for y, tick in places}
    assert heights.keys() == {5, 10, 20, 50, 100, 200, 500, 1000}
    assert heights[5] - heights[10] == pytest.approx(heights[50] - heights[100], abs=0.2)


def test_intervals_with_both_ends_are_bars():
    values = [n * 1_000_000 for n in range(1, 101)]
    summary = percentiles(values)
    assert [one.high is None for one in summary] == [False, False, True, True]
    plot = latency_plot({"a": values}, {"a": summary})
    bars = re.findall(r'class="interval a" x1="([\d.]+)" y1="([\d.]+)" x2="\1" y2="([\d.]+)"', plot)
    assert len(bars) == 2
    assert all(float(low) > float(high) for _, low, high in bars)


# -- results for code reviews


VALUES = inputs(30)


@pytest.fixture
def captures(tmp_path):
    """Return a capture, an equal one, and one in which batches differ."""
    answers = {
        "a": lambda _, x: np.float32(2) * x,
        "same": lambda _, x: np.float32(2) * x,
        "faulty": lambda _, x: x * np.float32(2 if len(x) < 3 else 9),
    }
    return {name: write_capture(tmp_path / f"{name}.trc", f, VALUES) for name, f in answers.items()}


def compared(captures, folder, name):
    files = folder / "a.md", folder / "a.xml"
    words = [captures["a"], captures[name], f"--markdown={files[0]}", f"--junit={files[1]}"]
    words.append(f"--hdr={folder / 'hdr'}")
    code = main(["compare", *map(str, words)])
    return code, files[0].read_text(), ElementTree.fromstring(files[1].read_text())


def test_a_comparison_is_a_comment_and_a_test_suite(captures, tmp_path, capsys):
    code, comment, suites = compared(captures, tmp_path, "faulty")
    assert code == 1
    assert comment.startswith("### :x: 14 of 30 answers differ\n")
    row = next(line for line in comment.splitlines() if line.startswith("| `m` |"))
    assert row.startswith("| `m` | 30 | 0, 0 | 14 | 1.00, 1.00 |")
    (line,) = (line for line in comment.splitlines() if line.startswith("* `values"))
    (case,) = suites.iter("testcase")
    assert (case.get("classname"), case.get("name")) == ("triton-replay.m", "answers")
    assert line == f"* `{case.find('failure').text}`"
    assert dict(suites.attrib) == {"tests": "1", "failures": "1"}
    assert "14 of 30 requests" in line
    assert sorted(path.name for path in (tmp_path / "hdr").iterdir()) == ["m.a.hgrm", "m.b.hgrm"]


def test_a_comparison_without_difference_has_no_failure(captures, tmp_path, capsys):
    code, comment, suites = compared(captures, tmp_path, "same")
    assert (code, suites.get("failures")) == (0, "0")
    assert comment.startswith("### :white_check_mark: 0 of 30 answers differ\n")
    assert "<details>" not in comment
    assert "No verdict" in comment


def test_conditions_of_ab_are_test_cases(captures, tmp_path, capsys):
    comment, xml = tmp_path / "ab.md", tmp_path / "ab.xml"
    with serving() as a, serving(answers=3) as b:
        conditions = ["--fail-if=errors>0", "--fail-if=p99>9x"]
        files = [f"--markdown={comment}", f"--junit={xml}", "--where=number<4"]
        words = ["ab", str(captures["a"]), f"--a={a}", f"--b={b}", *conditions, *files]
        assert main(words) == 1
    failed, held = ElementTree.fromstring(xml.read_text()).iter("testcase")
    assert (failed.get("name"), held.get("name")) == ("not errors>0", "not p99>9x")
    assert failed.find("failure").text.startswith("errors>0 holds\nm: A failed 0 times, B ")
    assert held.find("failure") is None
    assert "* failed: `not errors>0`" in comment.read_text()


def test_names_and_values_are_not_interpreted():
    name = "`|<b>&\n\x1b[31m" + "x" * 500
    model = ModelReview(name, 3, (0, 1), 1, [name], [("p50", 1, 2, "slower")])
    many = [model] * 21
    review = Review("ab", "title", [name], many, [Check("c", [name], "m")])
    comment, xml = markdown(review), junit(review)
    assert all(line.count("`") == 2 for line in comment.splitlines() if "xxx" in line)
    rows = [line for line in comment.splitlines() if line.startswith("| `")]
    assert {line.replace("\\|", "").count("|") for line in rows} == {6}
    assert len(rows) == 20
    assert "... and 1 models with fewer requests" in comment
    assert "1.00, 2.00 slower" in rows[0]
    assert "&lt;b&gt;&amp;" in xml
    assert len(comment) < 20_000
