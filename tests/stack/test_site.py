"""Tests of the documentation site: mkdocs builds it without a warning."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.servers import ROOT

from tools import site

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site; a broken link or anchor, or a page outside the navigation, is a warning."""
    build = tmp_path_factory.mktemp("site")
    assert site.build(site.Site(build).lay_out()) == []
    return build / "site"


def test_a_broken_link_is_reported(tmp_path: Path):
    (tmp_path / "pages").mkdir()
    (tmp_path / "pages" / "index.md").write_text("# Start\n\n[a page](missing.md)\n")
    config = tmp_path / "mkdocs.yml"
    config.write_text("site_name: test\ndocs_dir: pages\nsite_dir: site\n")
    assert "'missing.md'" in "".join(site.build(config))


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


def test_pages_load_nothing_from_other_hosts(built: Path):
    loaded = re.compile(
        r"""<(?:script|img|link(?! rel="canonical"))[^>]+(?:src|href)="(http[^"]+)"""
    )
    for page in built.rglob("*.html"):
        assert loaded.findall(page.read_text()) == [], page
    # For elements of this class, the theme fetches mermaid from a CDN.
    assert 'class="mermaid"' not in (built / "architecture" / "index.html").read_text()


#: A name that each reference must have.
NAMES = {
    "ge_runtime.adapters.triton": "GraphModel",
    "ge_runtime.runtime": "Runtime",
    "reference_server.testing": "open_model",
    "reference_server.backends.python_host.triton_python_backend_utils": "get_input_tensor_by_name",
    "ascend_simulator": "reset_for_tests",
    "tritonserver._api": "poll_model_repository",
    "tritonfrontend": "KServeGrpc",
}


@pytest.mark.parametrize("module", site.API.values())
def test_what_users_import_has_its_docstrings(built: Path, module: str):
    assert NAMES[module] in text(built / "api" / module / "index.html")
