"""The example clients against the reference server on the real models."""

import subprocess
import sys
from collections.abc import Iterator

import pytest
from support.servers import ROOT, Server, free_ports, start_reference_server

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with start_reference_server(ROOT / "model_repository") as server:
        yield server


def test_text_example_shows_label_and_scores(server):
    shown = run_example("classify_text.py", "--url", server.http, "My parcel never arrived.")
    assert '"My parcel never arrived."\n  is about: delivery\n' in shown
    # The best class comes first, and each of the six has a score.
    first, *others = shown.split("delivery\n", 1)[1].splitlines()
    assert "delivery" in first
    assert len(others) == 5


def test_text_example_has_texts_of_its_own(server):
    shown = run_example("classify_text.py", "--url", server.http)
    assert shown.count("is about: ") == 2


def test_image_example_names_digits_of_unequal_sizes(server):
    shown = run_example("classify_image.py", "--url", server.http, "0123456789")
    answers = [block.splitlines() for block in shown.split("\nA ")[1:]]
    # A drawing is followed by its three best classes.
    best = [lines[-3].split()[0] for lines in answers]
    assert best == ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
    assert len({lines[0].split(", ")[1] for lines in answers}) == 3


def test_page_example_prints_lines_and_draws_their_boxes(server, tmp_path):
    drawn = tmp_path / "read.png"
    page = ROOT / "model_factory" / "data" / "pages" / "upside_down.png"
    shown = run_example("read_page.py", "--url", server.http, "--output", drawn, page)
    assert [line.split("  ")[1] for line in shown.splitlines()[:2]] == [
        "为什么这个月扣了我两次钱？",
        "消息提醒延迟了好几个小时。",
    ]
    assert drawn.read_bytes() != page.read_bytes()


@pytest.mark.parametrize("example", ["classify_text.py", "classify_image.py", "read_page.py"])
def test_absent_server_is_one_line(example):
    (port,) = free_ports(1)
    result = start_example(example, "--url", f"localhost:{port}")
    assert result.returncode == 1
    assert result.stderr == f"localhost:{port}: [Errno 111] Connection refused\n"


def run_example(name: str, *arguments: str) -> str:
    """Give what an example prints; its failure is the test's."""
    result = start_example(name, *arguments)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def start_example(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, ROOT / "examples" / name, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)
