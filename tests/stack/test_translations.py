"""Pages in Chinese say what the English ones do: headings, code, figures, links and pictures."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest
from support.servers import ROOT

#: A page `x.zh.md` stands beside its English one.
TRANSLATED = sorted(page for folder in (ROOT, ROOT / "docs") for page in folder.glob("*.zh.md"))
_BLOCK = re.compile(r"^```.*?^```$", re.M | re.S)
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
_CODE = re.compile(r"`[^`]+`")
_LINK = re.compile(r"\]\(([^)\s]+)\)")


def english(page: Path) -> str:
    """The text that a page is the translation of, without the link to the translation."""
    text = page.with_name(page.name.replace(".zh.md", ".md")).read_text()
    return text.replace(f"[中文]({page.name})\n", "")


def chinese(page: Path) -> str:
    """The page's text, without the link back."""
    return page.read_text().replace(f"[English]({page.name.replace('.zh.md', '.md')})\n", "")


def headings(text: str) -> list[int]:
    return [len(marks) for marks in re.findall(r"^(#+) ", _BLOCK.sub("", text), re.M)]


def prose(text: str) -> str:
    """All but blocks of code; lines end elsewhere in Chinese."""
    return re.sub(r"\s+", " ", _BLOCK.sub("", text))


@pytest.mark.parametrize("page", TRANSLATED, ids=lambda page: page.name)
def test_a_translation_is_in_step(page: Path):
    there, here = english(page), chinese(page)
    assert headings(here) == headings(there)
    assert _BLOCK.findall(here) == _BLOCK.findall(there)
    for sought in (_NUMBER, _CODE, _LINK):
        assert Counter(sought.findall(prose(here))) == Counter(sought.findall(prose(there)))


def test_each_page_links_to_its_translation_and_back():
    for page in TRANSLATED:
        name = page.name.replace(".zh.md", ".md")
        assert f"[中文]({page.name})" in page.with_name(name).read_text()
        assert f"[English]({name})" in page.read_text()
    assert ROOT / "README.zh.md" in TRANSLATED
