"""Charts as inline SVG: lines over steps, changes, heat maps, histograms, problems won and lost,
and one interval for a table cell.

A chart is a string of SVG that scales with its container. Colours, fonts and strokes are left to
the page through classes, `s0`, `s1`, ... for the series, so that one picture serves light, dark and
print. Every text is escaped.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from html import escape

Format = Callable[[float], str]
Scale = Callable[[float], float]

_WIDTH, _HEIGHT = 360, 226  # units of the view box, about one CSS pixel each
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 12, 50, 36
_MAX_DOTS = 16
_NO_VALUES = f'<text class="note" x="{_LEFT}" y="60">no values</text>'


@dataclass(frozen=True, kw_only=True)
class Series:
    """One line of a chart. Points that are not finite are left out."""

    label: str
    """Its name in the legend."""
    x: Sequence[float]
    """Steps or iterations."""
    y: Sequence[float]
    """A value for each x."""
    low: Sequence[float] = field(default=())
    """Lower end of an interval for each x; empty for a line without a band."""
    high: Sequence[float] = field(default=())
    """Upper end of an interval for each x."""

    def points(self) -> list[tuple[float, float]]:
        """(x, y) of every point."""
        points = zip(self.x, self.y, strict=True)
        return [(x, y) for x, y in points if math.isfinite(x) and math.isfinite(y)]

    def band(self) -> list[tuple[float, float, float]]:
        """(x, low, high) of every point; empty without a band."""
        if not self.low:
            return []
        points = zip(self.x, self.low, self.high, strict=True)
        return [(x, low, high) for x, low, high in points if math.isfinite(low + high)]


@dataclass(frozen=True, kw_only=True)
class Change:
    """A quantity before and after."""

    label: str
    """What and of which round."""
    before: float
    """Its first value."""
    after: float
    """Its last value."""
    before_interval: tuple[float, float] | None = None
    """(low, high) of the first value, or None."""
    after_interval: tuple[float, float] | None = None
    """(low, high) of the last value, or None."""

    def values(self) -> tuple[float, ...]:
        """Everything that the chart's axis must hold."""
        intervals = (*(self.before_interval or ()), *(self.after_interval or ()))
        return (self.before, self.after, *intervals)


def percent(value: float) -> str:
    return f"{100 * value:.1f}%"


def decimals(num_decimals: int) -> Format:
    return lambda value: f"{value:.{num_decimals}f}"


def plain(value: float) -> str:
    """Three significant digits, without an exponent where that is readable."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def line_chart(title: str, series: Sequence[Series], x_label: str, text: Format = plain) -> str:
    """Lines over a common axis, with a legend that names each line's last value. `text` writes
    values of y."""
    lines = [line for line in series if line.points()]
    if not lines:
        return _svg(title, _HEIGHT, [_NO_VALUES])
    xs: list[float] = []
    ys: list[float] = []
    for line in lines:
        for x, y in line.points():
            xs.append(x)
            ys.append(y)
        for _, low, high in line.band():
            ys += [low, high]
    # An axis that would begin near zero begins there. Steps and iterations are whole numbers.
    bottom = 0.0 if 0 < min(ys) < 0.4 * max(ys) else min(ys)
    y_ticks = ticks(bottom, max(ys), 4)
    to_x = _scale((min(xs), max(xs)), (_LEFT, _WIDTH - _RIGHT))
    to_y = _scale((y_ticks[0], y_ticks[-1]), (_HEIGHT - _BOTTOM, _TOP))
    x_ticks = []
    for tick in ticks(min(xs), max(xs), 5, 1.0):
        if min(xs) <= tick <= max(xs):
            x_ticks.append((to_x(tick), plain(tick)))
    parts = _axes(x_ticks, _tick_labels(y_ticks, to_y, text), x_label)
    for i, line in enumerate(lines):
        if line.band():
            parts.append(_band(line, f"s{i}", to_x, to_y))
    entries = []
    for i, line in enumerate(lines):
        parts += _line(line, f"s{i}", to_x, to_y, text)
        entries.append((line.label, text(line.points()[-1][1])))
    return _svg(title, _HEIGHT, [*parts, _legend(entries)])


def change_chart(title: str, changes: Sequence[Change], text: Format = plain) -> str:
    """One row per quantity: a hollow dot before, a full dot after, both with their intervals."""
    row_height, top = 42, 34
    height = top + row_height * len(changes) + 26
    values: list[float] = []
    for change in changes:
        values += change.values()
    x_ticks = ticks(min(values), max(values), 5)
    to_x = _scale((x_ticks[0], x_ticks[-1]), (14, _WIDTH - 14))
    bottom = top + row_height * len(changes) + 4
    lines = []
    labels = []
    for place, label in _tick_labels(x_ticks, to_x, text):
        x = _n(place)
        lines.append(f'<line class="grid" x1="{x}" x2="{x}" y1="{top - 6}" y2="{bottom}"/>')
        labels.append(
            f'<text class="tick" text-anchor="middle" x="{x}" y="{bottom + 14}">{label}</text>'
        )
    parts = lines + labels
    for i, change in enumerate(changes):
        parts += _change_row(change, top + row_height * i, to_x, text)
    return _svg(title, height, parts)


def heat_map(title: str, cells: Sequence[Sequence[float]], x_label: str, y_label: str) -> str:
    """Shares from 0 to 1 as shades: `cells[row][column]`, rows from the top. Axes count from 1
    (columns) and 0 (rows)."""
    if not cells:
        return _svg(title, _HEIGHT, [_NO_VALUES])
    top = 40
    columns = max(map(len, cells))
    width = (_WIDTH - _LEFT - _RIGHT) / columns
    height = min(30.0, 150 / len(cells))
    bottom = top + height * len(cells)
    parts: list[str] = []
    for row, line in enumerate(cells):
        y = top + height * row
        parts.append(
            f'<text class="tick" text-anchor="end" x="{_LEFT - 6}" '
            f'y="{_n(y + height / 2 + 4)}">{row}</text>'
        )
        for column, share in enumerate(line):
            tip = f"{escape(y_label)} {row}, {escape(x_label)} {column + 1}: {percent(share)}"
            parts += _heat_cell(share, tip, (_LEFT + width * column, y), (width, height))
    every = -(-columns // 16)
    for column in range(0, columns, every):
        centre = _n(_LEFT + width * (column + 0.5))
        parts.append(
            f'<text class="tick" text-anchor="middle" x="{centre}" '
            f'y="{_n(bottom + 14)}">{column + 1}</text>'
        )
    parts.append(f'<text class="name" x="2" y="33">{escape(y_label)}</text>')
    parts.append(
        f'<text class="name" text-anchor="end" x="{_WIDTH - _RIGHT}" '
        f'y="{_n(bottom + 28)}">{escape(x_label)}</text>'
    )
    return _svg(title, round(bottom + 34), parts)


def _heat_cell(
    share: float, tip: str, corner: tuple[float, float], size: tuple[float, float]
) -> list[str]:
    """A shaded rectangle, and its share in per cent where that fits. tip: what it says when pointed
    at."""
    x, y = corner
    width, height = size
    parts = [
        f'<rect class="heat" x="{_n(x + 0.5)}" y="{_n(y + 0.5)}" width="{_n(width - 1)}" '
        f'height="{_n(height - 1)}" '
        f'fill-opacity="{0.04 + 0.9 * share:.2f}"><title>{tip}</title></rect>'
    ]
    if width >= 22 and height >= 13:
        place = f'x="{_n(x + width / 2)}" y="{_n(y + height / 2 + 4)}"'
        parts.append(f'<text class="cell" text-anchor="middle" {place}>{100 * share:.0f}</text>')
    return parts


def histogram(
    title: str, labels: Sequence[str], series: Sequence[tuple[str, Sequence[float]]], x_label: str
) -> str:
    """Bars of shares per bin, the series of (name, share per bin) next to each other."""
    if not series:
        return _svg(title, _HEIGHT, [_NO_VALUES])
    highest = max(max(shares, default=0.0) for _, shares in series) or 1.0
    y_ticks = ticks(0.0, highest, 4)
    to_y = _scale((0.0, y_ticks[-1]), (_HEIGHT - _BOTTOM, _TOP))
    slot = (_WIDTH - _LEFT - _RIGHT) / len(labels)
    middles = [(_LEFT + slot * (i + 0.5), label) for i, label in enumerate(labels)]
    parts = _axes(middles, _tick_labels(y_ticks, to_y, percent), x_label)
    bar = slot * 0.8 / len(series)
    entries = []
    for number, (name, shares) in enumerate(series):
        entries.append((name, ""))
        for i, share in enumerate(shares):
            x, y = _LEFT + slot * (i + 0.1) + bar * number, to_y(share)
            tip = f"<title>{escape(name)}, {escape(labels[i])}: {percent(share)}</title>"
            parts.append(
                f'<rect class="dot s{number}" x="{_n(x)}" y="{_n(y)}" width="{_n(bar)}" '
                f'height="{_n(_HEIGHT - _BOTTOM - y)}">{tip}</rect>'
            )
    return _svg(title, _HEIGHT, [*parts, _legend(entries)])


def won_lost_chart(title: str, rows: Sequence[tuple[str, int, int]]) -> str:
    """One row of (label, won, lost) each: problems won to the right of the middle, lost to the
    left."""
    row_height, top = 40, 30
    height = top + row_height * len(rows) + 8
    middle = _WIDTH / 2
    most = 1
    for _, won, lost in rows:
        most = max(most, won, lost)
    reach = (middle - 54) / most
    parts = []
    for i, (label, won, lost) in enumerate(rows):
        y = top + row_height * i
        parts.append(f'<text class="key" x="2" y="{y + 10}">{escape(label)}</text>')
        parts.append(
            f'<text class="key last" text-anchor="end" x="{_WIDTH - 2}" '
            f'y="{y + 10}">{won - lost:+d}</text>'
        )
        parts.append(
            f'<rect class="dot s1" x="{_n(middle - lost * reach)}" y="{y + 16}" '
            f'width="{_n(lost * reach)}" height="12"/>'
        )
        parts.append(
            f'<rect class="dot s2" x="{_n(middle)}" y="{y + 16}" width="{_n(won * reach)}" '
            'height="12"/>'
        )
        parts.append(
            f'<text class="tick" text-anchor="end" x="{_n(middle - lost * reach - 4)}" '
            f'y="{y + 26}">{lost} lost</text>'
        )
        parts.append(
            f'<text class="tick" x="{_n(middle + won * reach + 4)}" y="{y + 26}">{won} won</text>'
        )
    parts.append(
        f'<line class="axis" x1="{_n(middle)}" x2="{_n(middle)}" y1="{top + 12}" '
        f'y2="{height - 4}"/>'
    )
    return _svg(title, height, parts)


def interval_bar(value: float, low: float, high: float) -> str:
    """A share with its interval on a track from 0 to 1."""
    to_x = _scale((0.0, 1.0), (4, 156))
    return (
        '<svg class="interval" viewBox="0 0 160 14" aria-hidden="true">'
        '<line class="track" x1="4" x2="156" y1="7" y2="7"/>'
        f'<line class="range" x1="{_n(to_x(low))}" x2="{_n(to_x(high))}" y1="7" y2="7"/>'
        f'<circle class="value" cx="{_n(to_x(value))}" cy="7" r="2.6"/></svg>'
    )


def ticks(low: float, high: float, count: int, least: float = 0.0) -> list[float]:
    """About `count` round numbers at least `least` apart, the first at or below `low` and the last
    at or above `high`."""
    if high - low <= 1e-12 * max(abs(low), abs(high)):
        low, high = (0.0, 1.0) if low == 0 else (low - abs(low) / 2, high + abs(high) / 2)
    rough = max((high - low) / count, least)
    power = 10.0 ** math.floor(math.log10(rough))
    step = 10 * power
    for multiple in (1, 2, 5) if least else (1, 2, 2.5, 5):
        if multiple * power >= rough * (1 - 1e-9):
            step = power * multiple
            break
    first = math.floor(low / step + 1e-9)
    last = math.ceil(high / step - 1e-9)
    num_decimals = 12 - math.floor(math.log10(step))
    return [round(i * step, num_decimals) for i in range(first, last + 1)]


def _tick_labels(values: Sequence[float], scale: Scale, text: Format) -> list[tuple[float, str]]:
    """(place, label) of round numbers, with as many decimals as the one that needs most; per cent
    where `text` writes that."""
    factor, sign = (100, "%") if text is percent else (1, "")
    decimals = 0
    for value in values:
        decimals = max(decimals, len(f"{factor * value:.10f}".rstrip("0").partition(".")[2]))
    labels = []
    for value in values:
        label = f"{factor * value:,.{decimals}f}{sign}" if decimals <= 5 else f"{value:.2g}"
        labels.append((scale(value), label))
    return labels


def _scale(domain: tuple[float, float], target: tuple[float, float]) -> Scale:
    a, b = domain
    c, d = target
    return lambda value: c + (d - c) * ((value - a) / (b - a) if b != a else 0.5)


def _n(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def _svg(title: str, height: int, parts: Sequence[str]) -> str:
    head = (
        f'<svg class="chart" viewBox="0 0 {_WIDTH} {height}" role="img" '
        f'aria-label="{escape(title)}">'
    )
    return "".join(
        [head, f'<text class="title" x="2" y="15">{escape(title)}</text>', *parts, "</svg>"]
    )


def _axes(
    x_ticks: Sequence[tuple[float, str]], y_ticks: Sequence[tuple[float, str]], x_label: str
) -> list[str]:
    """Grid lines, tick labels (place, text) and the name of the x axis."""
    base = _HEIGHT - _BOTTOM
    end = _WIDTH - _RIGHT
    lines = []
    labels = []
    for y, label in y_ticks:
        lines.append(f'<line class="grid" x1="{_LEFT}" x2="{end}" y1="{_n(y)}" y2="{_n(y)}"/>')
        labels.append(
            f'<text class="tick" text-anchor="end" x="{_LEFT - 6}" '
            f'y="{_n(y + 3.5)}">{escape(label)}</text>'
        )
    axis = f'<line class="axis" x1="{_LEFT}" x2="{end}" y1="{base}" y2="{base}"/>'
    parts = [*lines, *labels, axis]
    for x, label in x_ticks:
        parts.append(f'<line class="axis" x1="{_n(x)}" x2="{_n(x)}" y1="{base}" y2="{base + 4}"/>')
        parts.append(
            f'<text class="tick" text-anchor="middle" x="{_n(x)}" '
            f'y="{base + 15}">{escape(label)}</text>'
        )
    return [
        *parts,
        f'<text class="name" text-anchor="end" x="{end}" y="{base + 29}">{escape(x_label)}</text>',
    ]


def _band(series: Series, css: str, to_x: Scale, to_y: Scale) -> str:
    upper = []
    lower = []
    for x, low, high in series.band():
        upper.append(f"{_n(to_x(x))},{_n(to_y(high))}")
        lower.append(f"{_n(to_x(x))},{_n(to_y(low))}")
    return f'<polygon class="band {css}" points="{" ".join([*upper, *reversed(lower)])}"/>'


def _line(series: Series, css: str, to_x: Scale, to_y: Scale, text: Format) -> list[str]:
    """The line; where points are few also a dot on each, which names its value when pointed at."""
    points = series.points()
    places = [f"{_n(to_x(x))},{_n(to_y(y))}" for x, y in points]
    parts = [f'<polyline class="line {css}" points="{" ".join(places)}"/>']
    for x, y in points if len(points) <= _MAX_DOTS else points[-1:]:
        value = f"<title>{escape(f'{plain(x)}: {text(y)}')}</title>"
        parts.append(
            f'<circle class="dot {css}" cx="{_n(to_x(x))}" cy="{_n(to_y(y))}" '
            f'r="2.6">{value}</circle>'
        )
    return parts


def _legend(entries: Sequence[tuple[str, str]]) -> str:
    """(label, last value) of each series, in one row under the title."""
    parts, x = [], 2.0
    for i, (label, value) in enumerate(entries):
        parts.append(f'<line class="line s{i}" x1="{_n(x)}" x2="{_n(x + 14)}" y1="31" y2="31"/>')
        parts.append(
            f'<text class="key" x="{_n(x + 19)}" y="35">{escape(label)} <tspan '
            f'class="last">{escape(value)}</tspan></text>'
        )
        x += 19 + 6.1 * len(f"{label} {value}") + 14
    return "".join(parts)


def _change_row(change: Change, y: int, to_x: Scale, text: Format) -> list[str]:
    middle, before, after = y + 26, to_x(change.before), to_x(change.after)
    values = f"{text(change.before)} → {text(change.after)}"
    parts = [
        f'<text class="key" x="2" y="{y + 10}">{escape(change.label)}</text>',
        f'<text class="key last" text-anchor="end" x="{_WIDTH - 2}" '
        f'y="{y + 10}">{escape(values)}</text>',
        f'<line class="move" x1="{_n(before)}" x2="{_n(after)}" y1="{middle}" y2="{middle}"/>',
    ]
    for interval, css, dy in ((change.before_interval, "s1", 4), (change.after_interval, "s0", -4)):
        if interval:
            low, high = to_x(interval[0]), to_x(interval[1])
            parts.append(
                f'<line class="whisker {css}" x1="{_n(low)}" x2="{_n(high)}" y1="{middle + dy}" '
                f'y2="{middle + dy}"/>'
            )
    parts.append(f'<circle class="hollow s1" cx="{_n(before)}" cy="{middle}" r="5"/>')
    return [*parts, f'<circle class="dot s0" cx="{_n(after)}" cy="{middle}" r="3.6"/>']
