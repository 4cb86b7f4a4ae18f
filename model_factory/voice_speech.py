"""Speech to measure `voice_activity` with: sentences of this project, spoken by eSpeak NG.

    python -m model_factory.voice_speech      speak them again, into model_factory/data/speech.npz

They ship as samples, because a speech synthesiser weighs 10 MB. Its licence (GPL 3) is that of the
program, not of what it says.
"""

from __future__ import annotations

import ctypes
import tempfile
import zipfile
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from model_factory.published import PublishedWheel

SPEECH: Final = Path(__file__).with_name("data") / "speech.npz"
RATE: Final = 16000
"""Samples per second."""

_SPEAKER = PublishedWheel(
    "espeakng-loader==0.2.4",
    "espeakng_loader-0.2.4-py3-none-manylinux_2_17_x86_64.manylinux2014_x86_64.whl",
    "08721baf27d13d461f6be6eed9a65277e70d68234ff484fd8b9897b222cdcb6d",
    10,
    platform="manylinux2014_x86_64",
)
_SENTENCES = {
    "english": ("en-us", "My parcel never arrived, and nobody answers my mails."),
    "british": ("en-gb", "The invoice lists the wrong address."),
    "chinese": ("cmn", "我的包裹还没有收到。"),
}
_SYNCHRONOUS, _UTF8, _WORDS_A_MINUTE, _RATE_PARAMETER = 2, 1, 150, 1


def read_speech() -> dict[str, npt.NDArray[np.float32]]:
    """The sentences by language, samples from -1 to 1 at 16 kHz."""
    with np.load(SPEECH) as file:
        return {name: file[name].astype(np.float32) / 32768 for name in file.files}


def main() -> None:
    """Speak all sentences and keep them, INT16."""
    with tempfile.TemporaryDirectory() as folder:
        with zipfile.ZipFile(_SPEAKER.fetch()) as wheel:
            wheel.extractall(folder)
        data = Path(folder) / "espeakng_loader"
        speaker = ctypes.CDLL(str(data / "libespeak-ng.so"))
        place = str(data / "espeak-ng-data").encode()
        rate = speaker.espeak_Initialize(_SYNCHRONOUS, 0, place, 0)
        spoken = {
            name: _resampled(_spoken(speaker, voice, text), rate)
            for name, (voice, text) in _SENTENCES.items()
        }
    np.savez_compressed(SPEECH, **spoken)  # type: ignore[arg-type]  # its stub: allow_pickle


def _spoken(speaker: ctypes.CDLL, voice: str, text: str) -> npt.NDArray[np.int16]:
    """One sentence at the speaker's own rate."""
    parts: list[npt.NDArray[np.int16]] = []
    samples_type = ctypes.POINTER(ctypes.c_short)

    def take(samples: ctypes._Pointer[ctypes.c_short], count: int, _events: int) -> int:
        if count > 0:
            parts.append(np.ctypeslib.as_array(samples, (count,)).copy())
        return 0

    callback = ctypes.CFUNCTYPE(ctypes.c_int, samples_type, ctypes.c_int, ctypes.c_void_p)(take)
    speaker.espeak_SetSynthCallback(callback)
    speaker.espeak_SetVoiceByName(voice.encode())
    speaker.espeak_SetParameter(_RATE_PARAMETER, _WORDS_A_MINUTE, 0)
    content = text.encode()
    speaker.espeak_Synth(content, len(content) + 1, 0, 0, 0, _UTF8, None, None)
    speaker.espeak_Synchronize()
    return np.concatenate(parts)


def _resampled(samples: npt.NDArray[np.int16], rate: int) -> npt.NDArray[np.int16]:
    places = np.arange(len(samples) * RATE // rate) * (rate / RATE)
    resampled = np.interp(places, np.arange(len(samples)), samples)
    return np.asarray(resampled, np.int16)


if __name__ == "__main__":
    main()
