"""The labelled sentences keep the rules that their use relies on."""

import itertools
import re
from collections import Counter

import pytest

from model_factory.sentences import LABELS, LANGUAGES, Sentence, read_sentences

SENTENCES = read_sentences()
HANZI = re.compile(r"[一-鿿]")


def test_there_are_enough_and_every_class_and_language_has_its_share():
    assert len(SENTENCES) >= 640
    counts = Counter((sentence.label, sentence.language) for sentence in SENTENCES)
    assert set(counts) == set(itertools.product(LABELS, LANGUAGES))
    for label in LABELS:
        chinese = counts[label, "zh"] / (counts[label, "en"] + counts[label, "zh"])
        assert 0.2 <= chinese <= 0.3
    # Classes of one size: accuracy is then not flattered by a frequent one.
    assert len({counts[label, "en"] for label in LABELS}) == 1


def test_each_is_short_clean_and_in_its_language():
    for sentence in SENTENCES:
        assert sentence.text == " ".join(sentence.text.split())
        if sentence.language == "zh":
            assert HANZI.search(sentence.text), sentence
            assert 4 <= len(sentence.text) <= 40, sentence
        else:
            assert not HANZI.search(sentence.text), sentence
            assert 3 <= len(sentence.text.split()) <= 25, sentence


def test_the_split_depends_on_the_text_alone_and_takes_a_quarter():
    texts = [sentence.text for sentence in SENTENCES if sentence.held_out]
    assert 0.2 < len(texts) / len(SENTENCES) < 0.3
    assert all(Sentence("account", "en", text).held_out for text in texts)
    for label in LABELS:
        assert sum(item.held_out for item in SENTENCES if item.label == label) >= 20


@pytest.mark.parametrize("row", ["weather\ten\tIt rains.", "account\tfr\tBonjour."])
def test_an_unknown_label_or_language_is_refused_with_its_line(tmp_path, row):
    path = tmp_path / "sentences.tsv"
    path.write_text(f"label\tlanguage\ttext\naccount\ten\tFine.\n{row}\n")
    with pytest.raises(ValueError, match=r"sentences\.tsv, line 3: found"):
        read_sentences(path)
