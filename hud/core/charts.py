"""Geometry of line charts: values become points, a missing value is a gap."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 360, 96, 48, 8, 8, 8


@dataclass(frozen=True)
class Chart:
    """A chart ready to be drawn.

    Attributes:
        lines: points of each unbroken stretch, for ``<polyline>``.
        dots: centre of each value and its place in the series.
        ticks: heights of the grid lines and the values they stand for.
    """

    lines: tuple[str, ...]
    dots: tuple[tuple[float, float, int], ...]
    ticks: tuple[tuple[float, float], ...]
    width: int = WIDTH
    height: int = HEIGHT
    left: int = LEFT
    right: int = WIDTH - RIGHT


def line_chart(values: Sequence[float | None], floor: float | None = None, ceiling: float | None = None) -> Chart:
    """Lay out a series from left to right.

    Args:
        values: in order; ``None`` is a gap.
        floor, ceiling: fixed ends of the scale; by default those of the values.
    """
    known = [value for value in values if value is not None]
    if not known:
        return Chart((), (), ())
    low = min(known) if floor is None else floor
    high = max(known) if ceiling is None else ceiling
    if high <= low:
        low, high = low - 0.5 * (abs(low) or 1), high + 0.5 * (abs(high) or 1)
    step = (WIDTH - LEFT - RIGHT) / max(1, len(values) - 1)

    def height(value: float) -> float:
        return round(TOP + (HEIGHT - TOP - BOTTOM) * (high - value) / (high - low), 1)

    lines: list[list[tuple[float, float]]] = [[]]
    dots = []
    for place, value in enumerate(values):
        if value is None:
            lines.append([])
            continue
        spot = (round(LEFT + place * step, 1), height(value))
        lines[-1].append(spot)
        dots.append((*spot, place))
    drawn = tuple(" ".join(f"{x},{y}" for x, y in line) for line in lines if len(line) > 1)
    return Chart(drawn, tuple(dots), tuple((height(value), value) for value in (low, (low + high) / 2, high)))
