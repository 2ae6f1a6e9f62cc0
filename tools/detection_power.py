"""What the change detector finds, and how often it cries wolf: by simulated series of nightly runs.

    python -m tools.detection_power                  10,000 series a noise and a loss, 15 minutes of a core
    python -m tools.detection_power --series 200     a look

False alarms: falls that `steps` tells, and configurations whose `drift` is told, in a year of 365 nights with
nothing but noise, beside the fewest that any detector can have. Power: the share of series in which a fall
that begins after 10 to 79 nights is told within so many nights of it. Noise: Gaussian of 0.5 %, alone or on a
machine that is slower on some nights, by chance. Seeds are fixed: the same command prints the same table.
docs/measuring.md has the results.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.measuring.change_points import drift, steps

Floats = NDArray[np.float64]
NIGHTS = 365
SIGMA = 0.005
EARLIEST, LATEST, AFTER = 10, 80, 15
WITHIN = (3, 8, AFTER)
DRIFT_EVERY = 10
"""Nights between two looks for a drift, which moves over weeks."""


@dataclass(frozen=True)
class Noise:
    """Gaussian, and with probability `slow_nights` slower by `slower`."""

    name: str
    slow_nights: float
    slower: float

    def series(self, rng: np.random.Generator, nights: int) -> Floats:
        slow = np.where(rng.random(nights) < self.slow_nights, 1.0 - self.slower, 1.0)
        return np.asarray(100.0 * (1.0 + rng.normal(0.0, SIGMA, nights)) * slow)


NOISES = (
    Noise("0.5 %", 0.0, 0.0),
    Noise("0.5 %, one night in ten 3 % slower", 0.1, 0.03),
    Noise("0.5 %, three nights in ten 3 % slower", 0.3, 0.03),
    Noise("0.5 %, one night in ten 30 % slower", 0.1, 0.3),
)
LOSSES: dict[str, Callable[[Floats], Floats]] = {
    "step of 2 %": lambda nights: np.full(len(nights), 0.98),
    "step of 3 %": lambda nights: np.full(len(nights), 0.97),
    "step of 5 %": lambda nights: np.full(len(nights), 0.95),
    "creep of 1 % a night": lambda nights: 0.99**nights,
}
"""What the speed is multiplied by on the nights 1, 2, ... of a loss."""


def least_false_alarms(noise: Noise, nights: int) -> float:
    """A year's false alarms of whatever tells a loss as large as the two speeds' difference so soon.

    Such a loss looks like `nights` slow ones in a row, which also come by chance: p ** k (1 - p) a night.
    """
    p = noise.slow_nights
    return float(NIGHTS * p**nights * (1.0 - p))


def false_alarms(noise: Noise, count: int) -> tuple[float, float]:
    """(falls told, configurations that drift) a year of one configuration."""
    falls = drifting = 0
    for seed in range(count):
        series = noise.series(np.random.default_rng([seed, 1]), NIGHTS).tolist()
        falls += sum(step.after < step.before for step in steps(series))
        looks = range(DRIFT_EVERY, NIGHTS + 1, DRIFT_EVERY)
        drifting += any(drift(series[:end], more_is_better=True) for end in looks)
    return falls / count, drifting / count


def told_after(noise: Noise, loss: Callable[[Floats], Floats], seed: int) -> float:
    """Nights from a loss's first to the one that tells it; infinite if AFTER nights do not."""
    rng = np.random.default_rng([seed, 2])
    begin = int(rng.integers(EARLIEST, LATEST))
    series = noise.series(rng, begin + AFTER)
    series[begin:] *= loss(np.arange(1.0, AFTER + 1.0))
    found = (
        step.told - begin
        for step in steps(series.tolist())
        if step.told > begin and step.at >= begin - 2 and step.after < step.before
    )
    return next(found, float("inf"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--series", type=int, default=10_000, metavar="N")
    count = parser.parse_args().series
    print(f"{count} series each; share told within {', '.join(map(str, WITHIN))} nights\n")
    for noise in NOISES:
        falls, drifting = false_alarms(noise, count)
        print(
            f"noise {noise.name}: {falls:.3f} falls and {drifting:.4f} drifts a year told falsely", flush=True
        )
        least = ", ".join(f"{limit}: {least_false_alarms(noise, limit):.2g}" for limit in WITHIN)
        print(
            f"  no detector of a loss of {noise.slower:.0%} has fewer falls within nights {least}", flush=True
        )
        for name, loss in LOSSES.items():
            nights = np.array([told_after(noise, loss, seed) for seed in range(count)])
            shares = " ".join(f"{np.mean(nights <= limit):7.2%}" for limit in WITHIN)
            print(f"  {name:22s} {shares}   median {np.median(nights):g}", flush=True)


if __name__ == "__main__":
    main()
