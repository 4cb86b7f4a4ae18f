"""What the steps of a recogniser spell (connectionist temporal classification)."""

import numpy as np


def alphabet(path):
    """The characters by number: a line of the file each, from 1; 0 is the blank between them."""
    characters = path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    return np.array(["", *characters], object)


def texts(characters, letters):
    """BYTES [rows]: the texts of [rows, steps] characters."""
    rows = zip(characters, _begins(characters), strict=True)
    return np.array(["".join(letters[row[begins]]).encode() for row, begins in rows], object)


def scores(characters, probabilities):
    """FP32 [rows]: the mean probability of each row's characters, 0 where there are none."""
    begins = _begins(characters)
    totals = np.where(begins, probabilities, 0).sum(axis=1)
    return (totals / np.maximum(begins.sum(axis=1), 1)).astype(np.float32)


def _begins(characters):
    """Where a character begins: it is no blank, and not that of the step before."""
    begins = characters != 0
    begins[:, 1:] &= characters[:, 1:] != characters[:, :-1]
    return begins
