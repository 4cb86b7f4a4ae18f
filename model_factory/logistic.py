"""Multinomial logistic regression in NumPy: one best answer, found the same way every time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Features = npt.NDArray[np.floating]
Classes = npt.NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class LinearHead:
    """Logits = features @ weight + bias; weight [features, classes], bias [classes], float64."""

    weight: Floats
    bias: Floats

    def logits(self, features: Features) -> Floats:
        """[n, features] to [n, classes]."""
        result: Floats = features @ self.weight + self.bias
        return result


def fit(features: Features, classes: Classes, *, l2: float) -> LinearHead:
    """The head of least mean cross-entropy plus l2/2 times the sum of the squared weights.

    features: [n, features]. They are standardised here, so that the penalty weighs all alike, and
        the scale is folded into the result; a feature that hardly varies gets weight zero.
    classes: [n], each class from 0 up present. l2: above 0.

    Accelerated gradient descent from zero. The loss is smooth and, by its penalty, strongly
    convex: step and momentum follow from the two curvatures, and there is exactly one minimum.
    """
    values = features.astype(np.float64)
    mean, deviation = values.mean(axis=0), values.std(axis=0)
    # Dead features differ by rounding errors only, which their own scale would make as loud as
    # the rest.
    alive = deviation > 1e-6 * deviation.max()
    scale = np.divide(1.0, deviation, out=np.zeros_like(deviation), where=alive)
    # The bias is one more feature, of ones.
    inputs = np.column_stack([(values - mean) * scale, np.ones(len(values))])
    targets = np.eye(classes.max() + 1)[classes]

    # The softmax loss curves by at most 1/2 for each unit of the inputs' own curvature.
    steepest = np.linalg.eigvalsh(inputs.T @ inputs / len(inputs))[-1] / 2 + l2
    ratio = np.sqrt(l2 / steepest)
    momentum = (1 - ratio) / (1 + ratio)
    # Each step leaves at most 1 - ratio of the loss above the minimum; until 1e-12 of it is left.
    steps = int(np.ceil(np.log(1e-12) / np.log1p(-ratio)))
    weight = ahead = np.zeros((inputs.shape[1], targets.shape[1]))
    for _ in range(steps):
        slope = inputs.T @ (_softmax(inputs @ ahead) - targets) / len(inputs) + l2 * ahead
        previous, weight = weight, ahead - slope / steepest
        ahead = weight + momentum * (weight - previous)

    scaled = weight[:-1] * scale[:, None]
    return LinearHead(scaled, weight[-1] - mean @ scaled)


def _softmax(logits: Floats) -> Floats:
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    result: Floats = powers / powers.sum(axis=1, keepdims=True)
    return result
