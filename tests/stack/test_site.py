"""The site of all pages: it is whole, and shows what the sources say."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.servers import ROOT

from tools import site

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the site; a link or anchor that leads nowhere, or a page left out, ends it."""
    build = tmp_path_factory.mktemp("site")
    config = site.Site(build).lay_out()
    command = (sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-f", str(config))
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return build / "site"


def text(page: Path) -> str:
    return re.sub(r"<[^>]+>", "", page.read_text())


def test_every_page_is_in_the_navigation(built: Path):
    linked = set(re.findall(r'href="([^":]+)/"', (built / "index.html").read_text()))
    pages = {page.stem for page in (ROOT / "docs").glob("*.md") if page.name != "README.md"}
    assert pages <= linked


def test_files_and_folders_that_pages_name_are_there(built: Path):
    model = "files/examples/models/distance/1/model.py"
    assert (built / model).read_bytes() == (ROOT / model.removeprefix("files/")).read_bytes()
    assert "running_sum" in text(built / "files" / "examples" / "models" / "index.html")


#: A name that each reference must have.
NAMES = {
    "ge_runtime.adapters.triton": "GraphModel",
    "ge_runtime.runtime": "Runtime",
    "reference_server.testing": "open_model",
    "reference_server.backends.python_host.triton_python_backend_utils": "get_input_tensor_by_name",
    "ascend_simulator": "reset_for_tests",
}


@pytest.mark.parametrize("module", site.API.values())
def test_what_users_import_has_its_docstrings(built: Path, module: str):
    assert NAMES[module] in text(built / "api" / module / "index.html")


def test_words_are_found(built: Path):
    assert "allow_ragged_batch" in (built / "search" / "search_index.json").read_text()
