"""acl.mdl: the parameters of dynamic AIPP, per image. `aipp_models` assigns them to a model."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Final, SupportsFloat

from ascend_simulator import process
from ascend_simulator.calls import I32, U32, U64, bare, status, value
from ascend_simulator.codes import Code, Refused
from ascend_simulator.models.aipp import (
    LARGEST_HALF,
    Frame,
    Parameters,
    data_bytes,
)
from ascend_simulator.models.datasets import lookup, remove
from ascend_simulator.resources import Handles

_MOST_ROWS: Final = 1 << 16


@dataclass
class Setting:
    """The object that create_aipp makes: parameters for a batch of images."""

    head: Parameters
    frames: list[Frame]

    @property
    def parameters(self) -> Parameters:
        """The head and the parameters of every image."""
        return replace(self.head, frames=tuple(self.frames))


@dataclass
class Settings:
    """The AIPP settings by handle: a `Part` of the process."""

    alive: Handles[Setting] = field(default_factory=lambda: Handles("AIPP configuration"))

    def live(self) -> list[str]:
        """Return the number of handles that were not destroyed, as text."""
        return [f"{len(self.alive)} {self.alive.kind}(s)"] if len(self.alive) else []

    def close(self) -> None:
        """Do nothing: handles hold no resources."""


def aipp_settings() -> Handles[Setting]:
    """Return the AIPP settings of the process, by handle."""
    return process.current().part(Settings).alive


def REAL(given: SupportsFloat) -> float:
    """Convert any number to float. Raises TypeError for other types, as pyACL does."""
    if isinstance(given, str):
        raise TypeError("must be real number, not str")
    return float(given)


# -- parameters ----------------------------------------------------------------------------------


@bare("mdl.create_aipp", U64)
def create_aipp(rows: int) -> int:
    """Create parameters for `rows` images. Refused: 0 is returned for a number out of range."""
    if not 0 < rows <= _MOST_ROWS:
        raise Refused(
            Code.INVALID_PARAM, f"create_aipp: found a batch of {rows}, expected 1 or more"
        )
    return aipp_settings().add(Setting(Parameters(), [Frame()] * rows))


@status("mdl.destroy_aipp", U64)
def destroy_aipp(handle: int) -> None:
    """Destroy the parameters. Models to which they were assigned keep their copy."""
    remove(aipp_settings(), handle, "destroy_aipp")


@value("mdl.get_aipp_data_size", U64)
def get_aipp_data_size(rows: int) -> int:
    """Return the bytes of the parameters of a batch of `rows` images."""
    if not rows:
        raise Refused(Code.INVALID_PARAM, "get_aipp_data_size: found 0, expected 1 or more")
    return data_bytes(rows)


@status("mdl.set_aipp_input_format", U64, U32)
def set_aipp_input_format(handle: int, layout: int) -> None:
    """Set an aclAippInputFormat; unsimulated formats are refused on assignment to a model."""
    own = lookup(aipp_settings(), handle, "set_aipp_input_format")
    own.head = replace(own.head, input_format=layout)


@status("mdl.set_aipp_csc_params", U64, I32, *[I32] * 9, *[I32] * 6)
def set_aipp_csc_params(handle: int, switch: int, *values: int) -> None:
    """Set the color matrix by rows, then output and input biases; ignored if switched off."""
    what = "set_aipp_csc_params"
    own = lookup(aipp_settings(), handle, what)
    own.head = replace(own.head, csc=_switch(what, switch))
    if switch:
        _check(what, values[:9], -32677, 32676)
        _check(what, values[9:], 0, 255)
        own.head = replace(
            own.head, matrix=values[:9], output_bias=values[9:12], input_bias=values[12:]
        )


@status("mdl.set_aipp_rbuv_swap_switch", U64, I32)
def set_aipp_rbuv_swap_switch(handle: int, switch: int) -> None:
    """Set whether the first and the last channel are swapped."""
    own = lookup(aipp_settings(), handle, "set_aipp_rbuv_swap_switch")
    own.head = replace(own.head, swaps=_switch("set_aipp_rbuv_swap_switch", switch))


@status("mdl.set_aipp_ax_swap_switch", U64, I32)
def set_aipp_ax_swap_switch(handle: int, switch: int) -> None:
    """Set the swap for images with four channels, which are not simulated."""
    own = lookup(aipp_settings(), handle, "set_aipp_ax_swap_switch")
    own.head = replace(own.head, swaps_x=_switch("set_aipp_ax_swap_switch", switch))


@status("mdl.set_aipp_src_image_size", U64, I32, I32)
def set_aipp_src_image_size(handle: int, width: int, height: int) -> None:
    """Set the width and height of all images of a batch; required."""
    what = "set_aipp_src_image_size"
    own = lookup(aipp_settings(), handle, what)
    _check(what, [width], 2, 4096)
    _check(what, [height], 1, 4096)
    own.head = replace(own.head, width=width, height=height)


@status("mdl.set_aipp_scf_params", U64, I32, I32, I32, I32, I32, U64)
def set_aipp_scf_params(handle: int, switch: int, *values: int) -> None:
    """Set resizing, which is refused when it is assigned to a model."""
    *sizes, index = values
    what = "set_aipp_scf_params"
    scales = _switch(what, switch)
    if scales:
        _check(what, sizes, 16, 4096)
    _change(what, handle, index, scales=scales)


@status("mdl.set_aipp_crop_params", U64, I32, I32, I32, I32, I32, U64)
def set_aipp_crop_params(handle: int, switch: int, *values: int) -> None:
    """Set left, top, width and height of the crop of one image."""
    *crop, index = values
    what = "set_aipp_crop_params"
    if _switch(what, switch):
        _check(what, crop[:2], 0, 4095)
        _check(what, crop[2:], 1, 4096)
    _change(what, handle, index, crop=tuple(crop) if switch else None)


@status("mdl.set_aipp_padding_params", U64, I32, I32, I32, I32, I32, U64)
def set_aipp_padding_params(handle: int, switch: int, *values: int) -> None:
    """Set the zero padding at top, bottom, left and right of one image."""
    *padding, index = values
    what = "set_aipp_padding_params"
    if _switch(what, switch):
        _check(what, padding, 0, 32)
    _change(what, handle, index, padding=tuple(padding) if switch else None)


@status("mdl.set_aipp_dtc_pixel_mean", U64, I32, I32, I32, I32, U64)
def set_aipp_dtc_pixel_mean(handle: int, *values: int) -> None:
    """Set mean_chn of the four channels of one image."""
    *mean, index = values
    _check("set_aipp_dtc_pixel_mean", mean, 0, 255)
    _change("set_aipp_dtc_pixel_mean", handle, index, mean=tuple(mean))


@status("mdl.set_aipp_dtc_pixel_min", U64, REAL, REAL, REAL, REAL, U64)
def set_aipp_dtc_pixel_min(handle: int, *values: float) -> None:
    """Set min_chn of the four channels of one image."""
    *low, index = values
    _check("set_aipp_dtc_pixel_min", low, 0, 255)
    _change("set_aipp_dtc_pixel_min", handle, int(index), low=tuple(low))


@status("mdl.set_aipp_pixel_var_reci", U64, REAL, REAL, REAL, REAL, U64)
def set_aipp_pixel_var_reci(
    handle: int, a: float, b: float, c: float, d: float, index: int
) -> None:
    """Set var_reci_chn of the four channels of one image."""
    _check("set_aipp_pixel_var_reci", (a, b, c, d), -LARGEST_HALF, LARGEST_HALF)
    _change("set_aipp_pixel_var_reci", handle, index, factor=(a, b, c, d))


def _change(what: str, handle: int, index: int, **values: object) -> None:
    frames = lookup(aipp_settings(), handle, what).frames
    if index >= len(frames):
        text = f"{what}: batch_index: found {index}, expected below {len(frames)}"
        raise Refused(Code.INVALID_PARAM, text)
    frames[index] = replace(frames[index], **values)  # type: ignore[arg-type]


def _switch(what: str, given: int) -> bool:
    _check(what, [given], 0, 1)
    return bool(given)


def _check(what: str, values: Iterable[float], low: float, high: float) -> None:
    for number in values:
        if not low <= number <= high:
            text = f"{what}: found {number:g}, expected {low:g} to {high:g}"
            raise Refused(Code.INVALID_PARAM, text)
