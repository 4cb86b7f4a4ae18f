"""Train the digit classifier again: `python -m model_factory.digits_train`.

Needs scikit-learn, torch and a few minutes on two cores. Writes the parameters and the accuracy on
the held-out sources. Equal seeds give equal parameters on equal machines.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional

from model_factory import digits_evaluation, digits_parameters
from model_factory.digits_images import (
    SIZE_BUCKETS,
    Floats,
    Sources,
    draw_disturbed,
    draw_plain,
    draw_size,
    load_sources,
)
from model_factory.digits_torch import DigitClassifier

logger = logging.getLogger(__name__)

_BATCH_SIZE = 64
_PEAK_LEARNING_RATE = 3e-3
_STEPS_PER_REPORT = 500


def main(arguments: list[str] | None = None) -> None:
    """Train, measure and write, with a progress line every few seconds."""
    parser = argparse.ArgumentParser(
        prog="python -m model_factory.digits_train", description=__doc__
    )
    parser.add_argument("--steps", type=int, default=6000, help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=0, help="default: %(default)s")
    parser.add_argument(
        "--output", type=Path, default=digits_parameters.SHIPPED, help="default: %(default)s"
    )
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    torch.set_num_threads(1)  # one order of sums on any number of cores

    network = train(load_sources(held_out=False), options.steps, options.seed)
    claim = measure(network, load_sources(held_out=True), options.steps, options.seed)
    parameters = {name: value.numpy() for name, value in network.state_dict().items()}
    digits_parameters.save(options.output, parameters, claim)
    logger.info("wrote %s, %d bytes", options.output, options.output.stat().st_size)


def train(sources: Sources, steps: int, seed: int) -> DigitClassifier:
    """Train a network on disturbed drawings of `sources`; return it in evaluation mode.

    steps: number of batches of 64 drawings. Seeds torch's global generator.
    """
    rng = np.random.default_rng(seed)
    torch.manual_seed(seed)
    network = DigitClassifier(dropout=0.2)
    optimizer = torch.optim.AdamW(network.parameters(), lr=_PEAK_LEARNING_RATE, weight_decay=0.02)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, _PEAK_LEARNING_RATE, total_steps=steps, pct_start=0.1
    )
    started, losses = time.monotonic(), []
    for step in range(1, steps + 1):
        chosen = rng.integers(len(sources.labels), size=_BATCH_SIZE)
        # One size for the whole batch: masked padding would cost time without any effect.
        size = draw_size(rng, SIZE_BUCKETS[int(rng.integers(len(SIZE_BUCKETS)))])
        images = torch.from_numpy(draw_disturbed(sources.images[chosen], size, rng))
        logits = network(images.unsqueeze(1), torch.ones_like(images))
        labels = torch.from_numpy(sources.labels[chosen])
        loss = functional.cross_entropy(logits, labels, label_smoothing=0.05)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
        if step % _STEPS_PER_REPORT == 0 or step == steps:
            seconds = time.monotonic() - started
            logger.info("step %d of %d: loss %.3f, %.0f s", step, steps, np.mean(losses), seconds)
            losses.clear()
    network.eval()
    return network


def measure(
    network: DigitClassifier, held_out: Sources, steps: int, seed: int
) -> digits_parameters.Claim:
    """Measure the accuracy that ships with the parameters."""

    def classify(image: Floats, mask: Floats) -> Floats:
        with torch.inference_mode():
            logits: Floats = network(torch.from_numpy(image), torch.from_numpy(mask)).numpy()
        return logits

    accuracies = {}
    for draw in (draw_plain, draw_disturbed):
        accuracies[draw] = digits_evaluation.accuracy_by_bucket(classify, held_out, draw)
        figures = ", ".join(
            f"{low}-{high} px: {accuracy:.4f}"
            for (low, high), accuracy in zip(SIZE_BUCKETS, accuracies[draw], strict=True)
        )
        logger.info("%s: mean %.4f; %s", draw.__name__, np.mean(accuracies[draw]), figures)
    return digits_parameters.Claim(
        plain=accuracies[draw_plain],
        disturbed=accuracies[draw_disturbed],
        seed=seed,
        steps=steps,
        parameters=sum(parameter.numel() for parameter in network.parameters()),
    )


if __name__ == "__main__":
    main()
