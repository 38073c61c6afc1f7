"""A figure in words and numbers, read off its own artists.

`describe(fig)` is the long description that `memlib.show.plate` attaches to every figure of the book. It serves two
readers: a person who does not see the picture, and the check that the figure still reproduces. Nothing is written by
hand, so nothing can drift.

Each kind of artist has one small function below, registered on `sentences`. An artist of a kind that nobody has
registered raises: a part of a figure is never left out in silence.
"""

from functools import singledispatch

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PathCollection, PolyCollection, QuadMesh
from matplotlib.container import BarContainer, ErrorbarContainer, StemContainer
from matplotlib.contour import ContourSet
from matplotlib.image import AxesImage
from matplotlib.legend import Legend
from matplotlib.lines import AxLine, Line2D
from matplotlib.patches import Patch, Rectangle
from matplotlib.quiver import Quiver
from matplotlib.text import Annotation, Text
from matplotlib.ticker import LogFormatter, NullFormatter, ScalarFormatter

__all__ = ["LISTED", "describe", "number", "sentences", "series", "without_labels"]

LISTED = 12
"""Series up to this length are listed in full; longer ones are sampled at this many places and summarised."""


def describe(fig, listed=LISTED):
    """The figure as text: one line for each axes, one for each thing drawn in it, with its numbers.

    Raises `ValueError` for a figure without axes, for axes in which nothing is drawn, and for axes without labels. Axes
    switched off (`ax.set_axis_off()`) and images marked with `without_labels` need none.
    """
    fig.draw_without_rendering()
    plain, bars = _axes_and_bars(fig)
    if not plain:
        raise ValueError("the figure has no axes: there is nothing to describe")
    lines = [f'Figure title "{fig.get_suptitle()}".'] if fig.get_suptitle() else []
    for number, ax in enumerate(plain, start=1):
        name = "Axes" if len(plain) == 1 else f"Axes {number} of {len(plain)}"
        lines.append(_axes_line(ax, name))
        drawn = [sentence for artist in _drawn(ax) for sentence in sentences(artist, ax, listed)]
        if not drawn:
            raise ValueError(f"{name}: nothing is drawn in it; draw something, or remove the axes")
        lines += [f"- {sentence}" for sentence in drawn]
    lines += [
        f'Colour bar "{_required(_bar_label(bar), "a colour bar", "a label")}", {_span(bar.vmin, bar.vmax)}.'
        for bar in bars
    ]
    for extra in (*fig.lines, *fig.patches, *fig.images, *fig.texts, *fig.legends):
        if extra is not getattr(fig, "_suptitle", None):
            lines += [f"- {sentence}" for sentence in sentences(extra, None, listed)]
    return "\n".join(lines)


def without_labels(ax):
    """Mark axes, such as those of a picture, as needing no axis labels. Returns the axes."""
    ax.memlib_without_labels = True
    return ax


# ---------------------------------------------------------------- axes


def _axes_line(ax, name):
    title = ax.get_title() or ax.get_title("left") or ax.get_title("right")
    head = f'{name} "{title}"' if title else name
    if not ax.axison:
        return f"{head}, without axes."
    free = getattr(ax, "memlib_without_labels", False)
    parts = [_axis_words(ax, side, name, free) for side in ("x", "y")]
    return f"{head}: {'; '.join(parts)}."


def _axis_words(ax, side, name, free):
    axis = getattr(ax, f"{side}axis")
    label = axis.get_label_text() or _shared_label(ax, side)
    if not free:
        _required(label, name, f"a label on its {side} axis (ax.set_{side}label)")
    words = f'{side} axis "{label}", ' if label else f"{side} axis, "
    low, high = axis.get_view_interval()
    words += f"{axis.get_scale()} scale, {_span(low, high)}"
    if axis.get_inverted():
        words += ", inverted"
    if not isinstance(axis.get_major_formatter(), ScalarFormatter | LogFormatter | NullFormatter):
        ticks = [text.get_text() for text in axis.get_ticklabels() if text.get_text()]
        words += f", ticks {', '.join(ticks)}" if ticks else ""
    return words


def _shared_label(ax, side):
    """With shared axes, or under a figure-wide label, the label is written once: take it from there."""
    siblings = getattr(ax, f"get_shared_{side}_axes")().get_siblings(ax)
    labels = [getattr(other, f"{side}axis").get_label_text() for other in siblings]
    labels.append(getattr(ax.figure, f"get_sup{side}label")())
    return next((label for label in labels if label), "")


def _required(text, owner, what):
    if not str(text).strip():
        raise ValueError(f"{owner} lacks {what}")
    return text


def _with_insets(axes):
    for ax in axes:
        yield ax
        yield from _with_insets(child for child in ax.child_axes if isinstance(child, Axes))


def _axes_and_bars(fig):
    """The visible axes of a figure, and its colour bars, whose axes are no axes of their own."""
    axes = list(_with_insets(fig.axes))
    bars = [artist.colorbar for ax in axes for artist in (*ax.images, *ax.collections) if artist.colorbar]
    return [ax for ax in axes if ax.get_visible() and ax not in [bar.ax for bar in bars]], bars


def _bar_label(bar):
    return bar.ax.get_ylabel() or bar.ax.get_xlabel() or bar.ax.get_title()


def _drawn(ax):
    """What is drawn in the axes: containers (bars, error bars) first, then single artists, not the frame itself."""
    frame = {ax.xaxis, ax.yaxis, ax.patch, ax.title, ax._left_title, ax._right_title, *ax.spines.values()}
    inside = {id(part) for container in ax.containers for part in _parts(container)}
    yield from ax.containers
    for artist in ax.get_children():
        skip = artist in frame or id(artist) in inside or isinstance(artist, Axes) or not artist.get_visible()
        if not skip and not (isinstance(artist, Text) and not artist.get_text()):
            yield artist


def _parts(container):
    for part in container:
        if isinstance(part, Artist):
            yield part
        elif part is not None:
            yield from part


# ---------------------------------------------------------------- one function for each kind of artist


@singledispatch
def sentences(artist, ax, listed):
    """The sentences that describe one artist. Register a function for a kind of artist not known here yet."""
    raise ValueError(
        f"cannot describe an artist of class {type(artist).__name__}: draw it with lines, points, bars, error bars, "
        "bands, images, meshes, contours, arrows or text, or register it with memlib.describe.sentences.register"
    )


@sentences.register
def _(line: Line2D, ax, listed):
    name = _name("line", line)
    x, y = (np.asarray(v, dtype=float) for v in line.get_data(orig=False))
    in_x, in_y = (True, True) if ax is None else line.get_transform().contains_branch_seperately(ax.transData)
    if in_y and not in_x:
        return [f"horizontal {name} at y = {number(y[0])}"]
    if in_x and not in_y:
        return [f"vertical {name} at x = {number(x[0])}"]
    return [f"{name}: {_points(x, y, listed)}"]


@sentences.register
def _(line: AxLine, ax, listed):
    (x, y), slope, other = line.get_xy1(), line.get_slope(), line.get_xy2()
    course = f"with slope {number(slope)}" if slope is not None else f"and ({number(other[0])}, {number(other[1])})"
    return [f"{_name('straight line', line)} through ({number(x)}, {number(y)}) {course}"]


@sentences.register
def _(points: PathCollection, ax, listed):
    xy = np.ma.filled(np.ma.asarray(points.get_offsets(), dtype=float), np.nan)
    extra = _coloured(points, listed)
    sizes = points.get_sizes()
    if len(sizes) > 1:
        extra += f"; sizes {series(sizes, listed)}"
    return [f"{_name('points', points)}: {_points(xy[:, 0], xy[:, 1], listed)}{extra}"]


@sentences.register
def _(lines: LineCollection, ax, listed):
    segments = [np.asarray(s, dtype=float) for s in lines.get_segments()]
    xy = np.concatenate(segments) if segments else np.empty((0, 2))
    points = _points(xy[:, 0], xy[:, 1], listed)
    return [f"{_name('segments', lines)}, {len(segments)} of them: {points}{_coloured(lines, listed)}"]


@sentences.register
def _(area: PolyCollection, ax, listed):
    found = []
    for path in area.get_paths():
        v = path.vertices
        half = (len(v) - 3) // 2
        first, second = v[1 : half + 1], v[half + 2 : 2 * half + 2][::-1]
        if len(v) == 2 * half + 3 and half > 0 and np.array_equal(first[:, 0], second[:, 0]):
            edges = f"one edge y {series(first[:, 1], listed)}; other edge y {series(second[:, 1], listed)}"
            found.append(f"{_name('band', area)}: x {series(first[:, 0], listed)}; {edges}")
        else:
            found.append(f"{_name('area', area)}: {_points(v[:, 0], v[:, 1], listed)}")
    return [text + _coloured(area, listed) for text in found] or [f"{_name('area', area)}: empty"]


@sentences.register
def _(arrows: Quiver, ax, listed):
    along = f"; components x {series(arrows.U, listed)}; y {series(arrows.V, listed)}"
    return [f"{_name('arrows', arrows)}: {_points(arrows.XY[:, 0], arrows.XY[:, 1], listed)}{along}"]


@sentences.register
def _(contours: ContourSet, ax, listed):
    vertices = [path.vertices for path in contours.get_paths() if len(path.vertices)]
    xy = np.concatenate(vertices) if vertices else np.empty((0, 2))
    levels = series(contours.levels, listed)
    return [f"{_name('contours', contours)} at levels {levels}: {_points(xy[:, 0], xy[:, 1], listed)}"]


@sentences.register
def _(image: AxesImage, ax, listed):
    low, high = image.get_clim()
    left, right, bottom, top = image.get_extent()
    place = f"x from {number(left)} to {number(right)}, y from {number(bottom)} to {number(top)}"
    return [f"{_name('image', image)}, {place}, colours {_span(low, high)}: {_table(image.get_array(), listed)}"]


@sentences.register
def _(mesh: QuadMesh, ax, listed):
    low, high = mesh.get_clim()
    corners = mesh.get_coordinates()
    place = f"x {series(corners[0, :, 0], listed)}; y {series(corners[:, 0, 1], listed)}"
    return [f"{_name('mesh', mesh)}, colours {_span(low, high)}: {_table(mesh.get_array(), listed)}; edges {place}"]


@sentences.register
def _(patch: Patch, ax, listed):
    xy = patch.get_path().transformed(patch.get_patch_transform()).vertices
    name = _name(type(patch).__name__.lower(), patch)
    if isinstance(patch, Rectangle) or len(xy) > listed:
        (x0, y0), (x1, y1) = xy.min(axis=0), xy.max(axis=0)
        summary = "" if isinstance(patch, Rectangle) else f"; outline {_points(xy[:, 0], xy[:, 1], listed)}"
        return [f"{name}: x from {number(x0)} to {number(x1)}, y from {number(y0)} to {number(y1)}{summary}"]
    return [f"{name}: {_points(xy[:, 0], xy[:, 1], listed)}"]


@sentences.register
def _(bars: BarContainer, ax, listed):
    upright = bars.orientation != "horizontal"
    boxes = [(p.get_x(), p.get_width(), p.get_y(), p.get_height()) for p in bars.patches]
    x, w, y, h = (np.array(column, dtype=float) for column in zip(*boxes, strict=True)) if boxes else (np.empty(0),) * 4
    centre, thickness, base, length = (x + w / 2, w, y, h) if upright else (y + h / 2, h, x, w)
    name = _name("bars" if upright else "horizontal bars", bars)
    text = f"{name}: at {series(centre, listed)}; lengths {series(length, listed)}"
    if np.any(base != 0):
        text += f"; starting at {series(base, listed)}"
    return [f"{text}; thickness {_span(thickness.min(), thickness.max())}" if len(boxes) else text]


@sentences.register
def _(bars: ErrorbarContainer, ax, listed):
    line, _caps, spreads = bars.lines
    found = []
    if line is not None:
        x, y = (np.asarray(v, dtype=float) for v in line.get_data(orig=False))
        found.append(f"{_name('line with error bars', bars)}: {_points(x, y, listed)}")
    for spread in spreads:
        ends = np.array([s[[0, -1]] for s in spread.get_segments()]).reshape(-1, 2, 2)
        side = 1 if np.array_equal(ends[:, 0, 0], ends[:, 1, 0]) else 0
        found.append(f"error bars: from {series(ends[:, 0, side], listed)}; to {series(ends[:, 1, side], listed)}")
    return found


@sentences.register
def _(stems: StemContainer, ax, listed):
    x, y = (np.asarray(v, dtype=float) for v in stems.markerline.get_data(orig=False))
    return [f"{_name('stems', stems)}: {_points(x, y, listed)}"]


@sentences.register
def _(text: Text, ax, listed):
    x, y = text.xy if isinstance(text, Annotation) else text.get_position()
    return [f'text "{text.get_text()}" at ({number(x)}, {number(y)})']


@sentences.register
def _(legend: Legend, ax, listed):
    title = f' "{legend.get_title().get_text()}"' if legend.get_title().get_text() else ""
    return [f"legend{title}: {', '.join(text.get_text() for text in legend.get_texts())}"]


# ---------------------------------------------------------------- numbers


def number(value):
    """Six significant digits; integers in full. What is rounded at its sixth digit never looks like an integer."""
    value = float(value)
    if not np.isfinite(value):
        return str(value)
    if value == int(value) and abs(value) < 1e15:
        return str(int(value))
    text = f"{value:.6g}"
    return f"{value:.5e}" if text.lstrip("-").isdigit() and len(text.lstrip("-")) > 5 else text


def series(values, listed=LISTED):
    """A series of numbers as text: all of them if there are at most `listed`, else evenly spaced samples and a summary.

    The summary holds count, extremes, mean, root mean square, total variation (the sum of all steps up and down) and a
    checksum (the mean of each value times the cosine of its place), so that a change shows wherever it is, also when
    values only change places. Arithmetic and geometric progressions are named as such.
    """
    values = np.ma.filled(np.ma.asarray(values, dtype=float).ravel(), np.nan)
    if values.size <= listed:
        return ", ".join(map(number, values)) or "none"
    if _even(values):
        return f"{values.size} values evenly spaced {_span(values[0], values[-1])}"
    if np.all(values > 0) and _even(np.log(values)):
        step = number(np.exp(np.log(values[-1] / values[0]) / (values.size - 1)))
        return f"{values.size} values, each {step} times the one before, {_span(values[0], values[-1])}"
    places = np.flatnonzero(np.isfinite(values))
    finite = values[places]
    missing = f", {values.size - finite.size} not finite" if finite.size < values.size else ""
    if not finite.size:
        return f"{values.size} values, none finite"
    samples = finite[np.linspace(0, finite.size - 1, listed).round().astype(int)]
    measures = {
        "least": finite.min(),
        "greatest": finite.max(),
        "mean": finite.mean(),
        "rms": np.sqrt(np.mean(finite**2)),
        "variation": np.abs(np.diff(finite)).sum(),
        "checksum": np.mean(finite * np.cos(places)),
    }
    summary = ", ".join(f"{name} {number(value)}" for name, value in measures.items())
    return f"{', '.join(map(number, samples))} (sampled from {values.size} values{missing}: {summary})"


def _even(values):
    if not np.all(np.isfinite(values)):
        return False
    steps = np.diff(values)
    return bool(steps[0] != 0 and np.ptp(steps) <= 1e-6 * abs(steps[0]))


def _points(x, y, listed):
    return f"{x.size} point{'s' * (x.size != 1)}, x {series(x, listed)}; y {series(y, listed)}"


def _table(values, listed):
    shape = " by ".join(str(n) for n in np.shape(values))
    return f"{shape} values {series(values, listed)}"


def _coloured(artist, listed):
    return "" if artist.get_array() is None else f"; coloured by {series(artist.get_array(), listed)}"


def _span(low, high):
    return f"from {number(low)} to {number(high)}"


def _name(kind, artist):
    label = str(artist.get_label() or "")
    return kind if not label or label.startswith("_") else f'{kind} "{label}"'
