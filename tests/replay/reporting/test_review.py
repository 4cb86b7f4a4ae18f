"""Results for code reviews: Markdown and JUnit's XML."""

from xml.etree import ElementTree

import numpy as np
import pytest
from replay.serving import serving
from replay.traffic import inputs, write_capture

from triton_replay.__main__ import main
from triton_replay.reporting.review import Check, ModelReview, Review, junit, markdown

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
