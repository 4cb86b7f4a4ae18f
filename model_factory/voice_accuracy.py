"""How well `voice_activity` tells speech from other sounds: chunk by chunk, as it is served."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from model_factory.voice_graph import SAMPLES
from model_factory.voice_speech import RATE, read_speech

logger = logging.getLogger(__name__)

Samples = npt.NDArray[np.float32]

SPEECH = 0.5
"""From this probability a chunk is taken for speech."""
_AUDIBLE = 0.01
"""From this loudness (root of mean squares) a chunk of a clean sentence is spoken, not a pause."""
_SECONDS = 3
_PAUSE = np.zeros(RATE // 4, np.float32)


@dataclass(frozen=True, slots=True)
class SoundScore:
    """What became of the chunks of one sound."""

    name: str
    right: int
    chunks: int

    def __str__(self) -> str:
        """The line that set-up prints."""
        return f"{self.name:22}  {self.right / self.chunks:.3f} ({self.right} of {self.chunks})"


def report(graph: bytes) -> None:
    """Log how many chunks of each sound are recognised. Blocks for a second or two."""
    logger.info("chunks of 32 ms that are taken for what they are:")
    for score in evaluate(graph):
        logger.info("  %s", score)


def evaluate(graph: bytes) -> list[SoundScore]:
    """The scores of spoken sentences, clean and in noise, and of sounds that nobody speaks."""
    scores = []
    rng = np.random.default_rng(1187)
    for name, sentence in read_speech().items():
        clean = np.concatenate([_PAUSE, sentence, _PAUSE])
        spoken = _loudness(clean) > _AUDIBLE
        power = np.sqrt(np.mean(np.square(sentence)))
        for decibels in (None, 10, 0):
            noise = rng.standard_normal(len(clean), np.float32) * power
            heard = clean if decibels is None else clean + noise * 10 ** (-decibels / 20)
            found = probabilities(graph, heard.astype(np.float32))[spoken] >= SPEECH
            suffix = "" if decibels is None else f"_noise_{decibels}_dB"
            scores.append(SoundScore(name + suffix, int(found.sum()), len(found)))
    for name, sound in _sounds(rng).items():
        found = probabilities(graph, sound) < SPEECH
        scores.append(SoundScore(name, int(found.sum()), len(found)))
    return scores


def probabilities(graph: bytes, samples: Samples) -> Samples:
    """[chunks]: how likely each is speech, of one stream from its beginning."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    providers = ["CPUExecutionProvider"]
    session = onnxruntime.InferenceSession(graph, options, providers=providers)
    inputs = {
        "context": np.zeros((1, 64), np.float32),
        "state": np.zeros((2, 1, 128), np.float32),
        "sr": np.array(RATE),
    }
    outputs = ["probability", "next_context", "next_state"]
    result = []
    for chunk in _chunks(samples):
        found, inputs["context"], inputs["state"] = session.run(
            outputs, inputs | {"samples": chunk[None]}
        )
        result.append(found[0, 0])
    return np.array(result, np.float32)


def _chunks(samples: Samples) -> Samples:
    """[chunks, 512]; what is left at the end is dropped."""
    return samples[: len(samples) // SAMPLES * SAMPLES].reshape(-1, SAMPLES)


def _loudness(samples: Samples) -> Samples:
    loudness: Samples = np.sqrt(np.mean(np.square(_chunks(samples)), axis=1))
    return loudness


def _sounds(rng: np.random.Generator) -> dict[str, Samples]:
    """Sounds that are no speech, of three seconds each."""
    time = np.arange(_SECONDS * RATE) / RATE
    white = rng.standard_normal(len(time))
    notes = 220 * 2 ** (np.array([0, 4, 7, 12, 7, 4])[(time * 4).astype(int) % 6] / 12)
    phase = 2 * np.pi * np.cumsum(notes) / RATE
    engine = _harmonics(2 * np.pi * 55 * time, 11)
    clicks = np.where(np.arange(len(time)) % 3200 < 160, white, 0)
    sounds = {
        "silence": 0 * time,
        "white_noise": 0.1 * white,
        "rumble": np.cumsum(white - white.mean()) * 0.002,
        "tone": 0.3 * np.sin(2 * np.pi * 440 * time),
        "melody": 0.2 * _harmonics(phase, 5),
        "engine": 0.1 * engine * (1 + 0.3 * np.sin(2 * np.pi * 9 * time)),
        "clicks": 0.3 * clicks,
    }
    return {name: sound.clip(-1, 1).astype(np.float32) for name, sound in sounds.items()}


def _harmonics(phase: npt.NDArray[np.float64], count: int) -> npt.NDArray[np.float64]:
    """A tone of this many partials, each weaker than the one before."""
    partials = np.arange(1, count + 1)[:, None]
    tone: npt.NDArray[np.float64] = (np.sin(partials * phase) / partials).sum(axis=0)
    return tone
