"""Pages of text to measure `ocr_pipeline` with: what is on them, and how they were drawn.

    python -m model_factory.ocr_pages      draw them again, into model_factory/data/pages/

They ship as images, because the Chinese fonts weigh 85 MB. The texts are sentences of this project,
which no recogniser was trained with.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from model_factory.published import PublishedWheel, read_member
from model_factory.sentences import Sentence, read_sentences

if TYPE_CHECKING:
    from PIL.Image import Image
    from PIL.ImageFont import FreeTypeFont

FOLDER: Final = Path(__file__).with_name("data") / "pages"
TEXTS: Final = FOLDER / "texts.tsv"

_FONTS = PublishedWheel(
    "mplfonts==0.0.11",
    "mplfonts-0.0.11-py3-none-any.whl",
    "b5e05ba7fd9a59cae48d1db41f657f50e6765e6f04b8d78504438b93a66b6e13",
    85,
)
"""Noto Sans CJK SC and Noto Serif CJK SC, SIL Open Font License, among others."""
_SANS, _SERIF = "NotoSansCJKsc-Regular.otf", "NotoSerifCJKsc-Regular.otf"


@dataclass(frozen=True, slots=True)
class Page:
    """A drawn page."""

    name: str
    image: Path
    lines: tuple[str, ...]
    """What is written on it, in reading order."""


def read_pages() -> tuple[Page, ...]:
    """The pages that ship."""
    pages: dict[str, list[str]] = {}
    for line in TEXTS.read_text(encoding="utf-8").splitlines():
        file, text = line.split("\t")
        pages.setdefault(file, []).append(text)
    return tuple(
        Page(Path(file).stem, FOLDER / file, tuple(lines)) for file, lines in pages.items()
    )


def main() -> None:
    """Draw all pages, and write down what is on them."""
    sentences = read_sentences()
    english = _texts(sentences, "en", 34, 62)
    chinese = _texts(sentences, "zh", 10, 26)
    receipt = [
        "RECEIPT 收据",
        "Order 订单 2024-11-0387",
        "Keyboard 键盘 x1 ¥358.50",
        "USB cable 数据线 x2 ¥27.80",
        "Delivery 快递费 ¥12.00",
        "Total 合计 ¥398.30",
        "Paid 18:42, card ending 5174",
        "service@example.com",
    ]
    plain = _draw(english[:10], _font(_SERIF, 22), (900, 480))
    faint = _font(_SERIF, 22)
    pages = {
        "english.png": (plain, english[:10]),
        "chinese.png": (_draw(chinese[:10], _font(_SANS, 24), (760, 480)), chinese[:10]),
        "small_print.png": (
            _draw(chinese[10:22], _font(_SERIF, 9), (300, 210)),
            chinese[10:22],
        ),
        "receipt_white_on_blue.png": (
            _draw(receipt, _font(_SANS, 26), (520, 400), "white", "#203a70"),
            receipt,
        ),
        "faint_and_blurred.png": (
            _blurred(_draw([*english[17:20], *chinese[29:32]], faint, (800, 280), "#909090")),
            [*english[17:20], *chinese[29:32]],
        ),
        "tilted_and_noisy.jpg": (
            _photographed(_draw([*english[10:14], *chinese[22:26]], _font(_SANS, 24), (900, 420))),
            [*english[10:14], *chinese[22:26]],
        ),
        "upside_down.png": (
            _draw([*chinese[26:29], *english[14:17]], _font(_SANS, 24), (900, 330)).rotate(180),
            [*chinese[26:29], *english[14:17]],
        ),
    }
    FOLDER.mkdir(exist_ok=True)
    for file, (image, _) in pages.items():
        image.save(FOLDER / file, quality=85, optimize=True)
    rows = [f"{file}\t{text}\n" for file, (_, lines) in pages.items() for text in lines]
    TEXTS.write_text("".join(rows), encoding="utf-8")


def _texts(sentences: Sequence[Sentence], language: str, least: int, most: int) -> list[str]:
    """Sentences of a language that fit a line, those of all topics mixed, the same every time."""
    fitting = [
        sentence.text
        for sentence in sentences
        if sentence.language == language and least <= len(sentence.text) <= most
    ]
    order = np.random.default_rng(1187).permutation(len(fitting))
    return [fitting[index] for index in order]


def _font(name: str, size: int) -> FreeTypeFont:
    from PIL import ImageFont

    return ImageFont.truetype(
        io.BytesIO(read_member(_FONTS.fetch(), f"mplfonts/fonts/{name}")), size
    )


def _draw(
    lines: Sequence[str],
    font: FreeTypeFont,
    size: tuple[int, int],
    ink: str = "black",
    paper: str = "white",
) -> Image:
    """Lines from the top left corner, evenly spaced; size: width and height in pixels."""
    from PIL import Image, ImageDraw

    image = Image.new("RGB", size, paper)
    draw = ImageDraw.Draw(image)
    for index, line in enumerate(lines):
        top = 20 + index * (size[1] - 30) / len(lines)
        draw.text((30, top), line, font=font, fill=ink)
    # As few colours as the edges of letters need: a third of the bytes.
    return image.quantize(16).convert("RGB")


def _blurred(image: Image) -> Image:
    from PIL import ImageFilter

    return image.filter(ImageFilter.GaussianBlur(2))


def _photographed(image: Image) -> Image:
    """Tilted by three degrees, unevenly lit, noisy."""
    from PIL import Image

    tilted = image.rotate(3, Image.Resampling.BICUBIC, expand=True, fillcolor="white")
    pixels = np.asarray(tilted, np.float32)
    light = np.linspace(1.0, 0.6, pixels.shape[1], dtype=np.float32)[:, None]
    noise = np.random.default_rng(5).normal(0, 12, pixels.shape[:2])[..., None]
    return Image.fromarray((pixels * light + noise).clip(0, 255).astype(np.uint8))


if __name__ == "__main__":
    main()
