"""Decode the output of a recogniser (connectionist temporal classification)."""

import numpy as np


def alphabet(path):
    """Return the characters by number: line 1 of the file is character 1; 0 is the blank."""
    characters = path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    return np.array(["", *characters], object)


def texts(characters, letters):
    """Return the texts of [rows, steps] characters, BYTES [rows]."""
    rows = zip(characters, _begins(characters), strict=True)
    return np.array(["".join(letters[row[begins]]).encode() for row, begins in rows], object)


def scores(characters, probabilities):
    """Return the mean probability of each row's characters, FP32 [rows]; 0 without characters."""
    begins = _begins(characters)
    totals = np.where(begins, probabilities, 0).sum(axis=1)
    return (totals / np.maximum(begins.sum(axis=1), 1)).astype(np.float32)


def _begins(characters):
    """Return a mask of the steps that begin a character: no blank, and not the previous step's."""
    begins = characters != 0
    begins[:, 1:] &= characters[:, 1:] != characters[:, :-1]
    return begins
