"""The digit classifier in torch: for training, and as the artifact of the torch engine.

The same network as `digits_onnx`, which explains it, over the same parameters.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from model_factory.digits_images import Floats
from model_factory.digits_parameters import CHANNELS, CLASSES, GRID, HIDDEN, LEAST_TOTAL


class DigitClassifier(nn.Module):  # type: ignore[misc]  # torch is not typed here
    """image [batch, 1, height, width] and mask [batch, height, width] to logits [batch, 10].

    dropout: the share of features that training drops before each linear layer.
    """

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.levels = nn.ModuleList(
            nn.Conv2d(incoming, outgoing, 3, stride=2 if level > 0 else 1, padding=1)
            for level, (incoming, outgoing) in enumerate(pairwise((1, *CHANNELS)))
        )
        self.hidden = nn.Linear(sum(CHANNELS) * GRID * GRID, HIDDEN)
        self.output = nn.Linear(HIDDEN, CLASSES)
        self.dropout = nn.Dropout(dropout)

    def forward(self, image: Tensor, mask: Tensor) -> Tensor:
        """The logits, float32; whatever `image` holds where `mask` is 0 changes nothing."""
        inside = mask.unsqueeze(1)
        features = torch.where(inside > 0, image, 0.0)
        rows, columns = _Axis(inside), _Axis(inside.transpose(2, 3))
        pooled = []
        for level, convolution in enumerate(self.levels):
            if level > 0:
                inside = functional.max_pool2d(inside, 1, stride=2)
                rows.halve()
                columns.halve()
            features = functional.relu(convolution(features)) * inside
            lines = torch.matmul(rows.shares().transpose(2, 3), features)
            pooled.append(torch.matmul(lines, columns.shares()))
        joined = self.dropout(torch.cat(pooled, 1).flatten(1))
        return self.output(self.dropout(functional.relu(self.hidden(joined))))


class _Axis:
    """The rows or the columns of the batch's images, as in `digits_onnx`."""

    def __init__(self, inside: Tensor) -> None:
        self._pitch = 1
        self._valid = inside.amax(3, keepdim=True)
        length = self._valid.sum(2, keepdim=True)
        self._middles = self._valid.cumsum(2) - 0.5
        self._cells = length * ((torch.arange(GRID, device=inside.device) + 0.5) / GRID)
        self._cell_length = length / GRID

    def halve(self) -> None:
        self._pitch *= 2
        self._valid = _every_second(self._valid)
        self._middles = _every_second(self._middles)

    def shares(self) -> Tensor:
        reach = self._cell_length.clamp(min=self._pitch)
        tent = functional.relu(1 - (self._middles - self._cells).abs() / reach)
        weights = tent * self._valid
        return weights / weights.sum(2, keepdim=True).clamp(min=LEAST_TOTAL)


def _every_second(x: Tensor) -> Tensor:
    # A pooling of one position, not a slice: torch.export then sees the very size formula of the
    # convolution, and knows that the two agree.
    return functional.max_pool2d(x, 1, stride=(2, 1))


class _AnySize(nn.Module):  # type: ignore[misc]
    """A network that torch.export can trace for sides from one pixel up.

    The tracer treats a size of one apart (it may broadcast), at every level, and so would refuse
    images below five pixels. Four rows and columns of padding more leave it no such case, and
    answers do not depend on padding.
    """

    def __init__(self, network: DigitClassifier) -> None:
        super().__init__()
        self.network = network

    def forward(self, image: Tensor, mask: Tensor) -> Tensor:
        margin = (0, 4, 0, 4)
        return self.network(functional.pad(image, margin), functional.pad(mask, margin))


def load_network(parameters: dict[str, Floats]) -> DigitClassifier:
    """The network over `parameters`, which are those of `digits_parameters.shapes`, to be run."""
    network = DigitClassifier()
    network.load_state_dict({name: torch.from_numpy(array) for name, array in parameters.items()})
    network.eval()
    return network


def save_classifier(parameters: dict[str, Floats], path: Path) -> None:
    """Write the network over `parameters` to `path` with torch.export, any batch and any size."""
    batch, height, width = (torch.export.Dim(name) for name in ("batch", "height", "width"))
    program = torch.export.export(
        _AnySize(load_network(parameters)),
        (torch.zeros(2, 1, 7, 6), torch.ones(2, 7, 6)),
        dynamic_shapes=(
            {0: batch, 2: height, 3: width},
            {0: batch, 1: height, 2: width},
        ),
    )
    torch.export.save(program, path)
