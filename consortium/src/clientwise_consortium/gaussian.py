"""The discrete Gaussian distribution, sampled exactly: with integers only, so no rounding tells anything.

Canonne, Kamath and Steinke (2020), "The discrete Gaussian for differential privacy", Algorithms 1 to 3. Noise in
floating point is not private to the bit (Mironov, 2012). The random integers are those of the operating system.
"""

from __future__ import annotations

from fractions import Fraction
from math import isqrt
from secrets import randbelow


def discrete_gaussian(variance: Fraction) -> int:
    """An integer x with probability proportional to exp(−x²/(2σ²)).

    An answer with sensitivity Δ has ρ = Δ²/(2σ²) of concentrated differential privacy.

    Args:
        variance: σ² > 0.
    """
    scale = isqrt(variance.numerator // variance.denominator) + 1
    while True:
        candidate = discrete_laplace(scale)
        distance = abs(candidate) - variance / scale
        if bernoulli_exp(distance**2 / (2 * variance)):
            return candidate


def discrete_laplace(scale: int) -> int:
    """An integer x with probability proportional to exp(−|x|/scale)."""
    while True:
        rest = randbelow(scale)
        if not bernoulli_exp(Fraction(rest, scale)):
            continue
        wholes = 0
        while bernoulli_exp(Fraction(1)):
            wholes += 1
        size = rest + scale * wholes
        is_negative = randbelow(2) == 1
        if is_negative and size == 0:
            continue  # zero would be drawn twice as often
        return -size if is_negative else size


def bernoulli_exp(exponent: Fraction) -> bool:
    """True with probability exp(−exponent), for an exponent of zero or more."""
    while exponent > 1:
        if not bernoulli_exp(Fraction(1)):
            return False
        exponent -= 1
    count = 1
    while _bernoulli(exponent / count):
        count += 1
    return count % 2 == 1


def _bernoulli(probability: Fraction) -> bool:
    return randbelow(probability.denominator) < probability.numerator
