"""Lay out the project's pages for mkdocs, and build the site: `python -m tools.site`.

Readers of the sources find the pages in several folders, with links to files of the project. The
site has all pages in one folder, with copies of these files and the API reference.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "build"
#: The modules that users import, by the title of the page with their docstrings.
API: Mapping[str, str] = {
    "Models and requests on ge_runtime": "ge_runtime.adapters.triton",
    "ge_runtime without a server": "ge_runtime.runtime",
    "Tests of models": "reference_server.testing",
    "triton_python_backend_utils": (
        "reference_server.backends.python_host.triton_python_backend_utils"
    ),
    "The simulated card": "ascend_simulator",
    "tritonserver": "tritonserver._api",
    "tritonfrontend": "tritonfrontend",
}
#: The pages outside docs/, and their names on the site.
_BESIDE = {
    "README.md": "index.md",
    "README.zh.md": "zh.md",
    "CONTRIBUTING.md": "CONTRIBUTING.md",
    "CHANGELOG.md": "CHANGELOG.md",
    "SECURITY.md": "SECURITY.md",
    "docs/README.md": "pages.md",
}
#: The folders of pages.
_FOLDERS = (ROOT, ROOT / "docs", ROOT / "docs" / "results")
_LINK = re.compile(r"(?<=\]\()([^)\s#]+)(?=[)#])")
#: A diagram in the language of mermaid, which GitHub draws. The site has a drawing of it.
DIAGRAM = re.compile(r"^```mermaid\n(.*?)^```$", re.M | re.S)
_BLOCK = re.compile(r"(^```.*?^```$)", re.M | re.S)
_ROW = re.compile(r"^\| (.*) \|$", re.M)
_NAMED = re.compile(r"\[([^\]]+)\]\(([^)#\s]+\.md)\)")
_SECTION = re.compile(r"^## (.*)\n((?:(?!^## ).*\n)*)", re.M)


class Site:
    """The pages below `build`, ready for mkdocs."""

    def __init__(self, build: Path) -> None:
        self._pages = build / "pages"
        self._config = build / "mkdocs.yml"
        shutil.rmtree(self._pages, ignore_errors=True)
        self._pages.mkdir(parents=True)

    def lay_out(self) -> Path:
        """Write all pages; return the path of the mkdocs configuration."""
        shutil.copytree(ROOT / "docs" / "images", self._pages / "images")
        sources = [ROOT / name for name in _BESIDE]
        sources += [page for page in (ROOT / "docs").glob("*.md") if page.name != "README.md"]
        sources += (ROOT / "docs" / "results").glob("*.md")
        (self._pages / "results").mkdir()
        for source in sources:
            (self._pages / _name(source)).write_text(self._moved(source), encoding="utf-8")
        for title, module in API.items():
            page = self._pages / "api" / f"{module}.md"
            page.parent.mkdir(exist_ok=True)
            page.write_text(f"# {title}\n\n::: {module}\n", encoding="utf-8")
        paths = [str(ROOT / name) for name in (".", "plugin", "simulator", "replay", "in_process")]
        lines = [
            f"INHERIT: {os.path.relpath(ROOT / 'mkdocs.yml', self._config.parent)}",
            "plugins:",
            f"  mkdocstrings: {{ handlers: {{ python: {{ paths: {paths} }} }} }}",
            "nav:",
            *_navigation(),
        ]
        self._config.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return self._config

    def _moved(self, page: Path) -> str:
        """Return the page's text with the links of the site; code blocks stay unchanged."""
        text = page.read_text(encoding="utf-8")
        text = DIAGRAM.sub(lambda found: f"![Diagram](images/{diagram_name(found[1])})", text)
        parts = _BLOCK.split(text)
        for index in range(0, len(parts), 2):
            parts[index] = _LINK.sub(lambda link: self._target(page, link[1]), parts[index])
        return "".join(parts)

    def _target(self, page: Path, link: str) -> str:
        if "://" in link:
            return link
        target = self._place((page.parent / link).resolve())
        return os.path.relpath(target, Path(_name(page)).parent)

    def _place(self, target: Path) -> str:
        """Return the site's path of a file or folder of the project."""
        if target == ROOT / "docs":
            return "pages.md"
        if target.is_relative_to(ROOT / "docs" / "images"):
            return f"images/{target.name}"
        if target.suffix == ".md" and target.parent in _FOLDERS:
            return _name(target)
        return self._copied(target)

    def _copied(self, target: Path) -> str:
        """Copy a file, or a folder's files with a page that lists them; return the site's path."""
        place = Path("files") / target.relative_to(ROOT)
        copy = self._pages / place
        copy.parent.mkdir(parents=True, exist_ok=True)
        if target.is_file():
            shutil.copy(target, copy)
            return place.as_posix()
        files = sorted(file for file in target.rglob("*.*") if "__pycache__" not in file.parts)
        for file in files:
            self._copied(file)
        listed = (f"* [{name}]({target.name}/{name})\n" for name in _below(target, files))
        copy.with_name(f"{target.name}.md").write_text(
            f"# {target.relative_to(ROOT).as_posix()}\n\n{''.join(listed)}", encoding="utf-8"
        )
        return f"{place.as_posix()}.md"


def diagram_name(text: str) -> str:
    """Return the name of a diagram's drawing; it changes with the diagram."""
    return f"diagram_{hashlib.sha256(text.encode()).hexdigest()[:8]}.svg"


def _below(folder: Path, files: list[Path]) -> list[str]:
    return [file.relative_to(folder).as_posix() for file in files if file.is_file()]


def _name(page: Path) -> str:
    path = page.relative_to(ROOT).as_posix()
    return _BESIDE.get(path, path.removeprefix("docs/"))


def _navigation() -> list[str]:
    """Return the sections and pages of docs/README.md as YAML."""
    lines = ["  - Start: index.md", "  - 中文:", "      - zh.md"]
    lines += [f"      - {page.name}" for page in sorted((ROOT / "docs").glob("*.zh.md"))]
    text = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    for title, rows in _SECTION.findall(text):
        lines.append(f"  - {title}:")
        for row in _ROW.findall(rows):
            for name, link in _NAMED.findall(row):
                page = _name((ROOT / "docs" / link).resolve())
                if page != "index.md":
                    lines.append(f"      - {name}: {page}")
    lines.append("  - Python reference:")
    lines += [f"      - {title}: api/{module}.md" for title, module in API.items()]
    return [*lines, "  - Changelog: CHANGELOG.md", "  - All pages: pages.md"]


def build(config: Path) -> list[str]:
    """Build the site of a configuration.

    mkdocs counts warnings only if it also prints them: with `--quiet`, `--strict` never fails.
    Therefore the messages are filtered here.

    Returns:
        The warnings and errors of mkdocs; empty if the site is complete.
    """
    command = (sys.executable, "-m", "mkdocs", "build", "--strict", "-f", str(config))
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    ran = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    lines = (ran.stdout + ran.stderr).splitlines()
    found = [line for line in lines if line.startswith(("WARNING", "ERROR"))]
    return found or (lines if ran.returncode else [])


def main() -> int:
    """Build the site in build/site; return 1 if mkdocs warns."""
    warnings = build(Site(BUILD).lay_out())
    if warnings:
        print("\n".join(warnings), file=sys.stderr)
        return 1
    print(f"{(BUILD / 'site' / 'index.html').relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
