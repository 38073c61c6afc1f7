"""One way to plot: the book's figures, their long descriptions, and explorers that also work in a static page.

    fig, ax = show.figure()
    ax.loglog(m, error, **show.role("trained"), label="trained")
    show.rate_line(ax, m, error[0], -0.5, "m^(-1/2)")
    ax.set(xlabel="width m", ylabel="error")
    show.plate(fig, alt="The error of a trained network falls like the inverse root of its width")

Every figure of the book is a `plate`: the picture, together with a text made from the figure's own artists (see
`memlib.describe`).
"""

import base64
import html
import io
import sys
from itertools import cycle

import numpy as np
from cycler import cycler
from matplotlib import rc_context
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.text import Annotation
from PIL import Image

from memlib.describe import describe, sentences, series, without_labels

__all__ = [
    "PALETTE",
    "Plate",
    "attention_map",
    "describe",
    "explorer",
    "figure",
    "kernel_lines",
    "label_line",
    "lookup_graph",
    "plate",
    "rate_line",
    "residual_slots",
    "role",
    "without_labels",
]

# ---------------------------------------------------------------- style

PALETTE = {
    "bound": "#000000",
    "construction": "#0072B2",
    "best": "#009E73",
    "trained": "#D55E00",
    "floor": "#A8468C",
    "data": "#595959",
    "reference": "#767676",
}
"""Colours by role, after Okabe and Ito: told apart under colour blindness, and by their markers in a grey print."""

_ROLES = {
    "bound": {"linestyle": "--"},
    "construction": {"linestyle": "-", "marker": "o"},
    "best": {"linestyle": "-", "marker": "D"},
    "trained": {"linestyle": "-", "marker": "s"},
    "floor": {"linestyle": ":", "marker": "v"},
    "data": {"linestyle": "none", "marker": "."},
    "reference": {"linestyle": "-.", "linewidth": 1.2},
}
_SERIES = {
    "color": ["#0072B2", "#D55E00", "#009E73", "#A8468C", "#56B4E9", "#B07800", "#000000", "#767676"],
    "linestyle": ["-", "--", "-.", ":", "-", "--", "-.", ":"],
}
_STYLE = {
    "font.family": "DejaVu Sans",
    "font.size": 11,
    "axes.titlesize": 12,
    "axes.labelsize": 12,
    "xtick.labelsize": 11,
    "ytick.labelsize": 11,
    "legend.fontsize": 11,
    "legend.frameon": False,
    "lines.linewidth": 1.8,
    "lines.markersize": 5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "axes.prop_cycle": cycler(**_SERIES),
    "image.cmap": "viridis",
}
DPI = 150
LARGEST = (10.0, 12.0)
"""Greatest width and height of a figure in inches: a page is no wider, and the saved notebooks stay small."""


def role(name, **more):
    """Keyword arguments for `ax.plot`: colour, marker and line style of a role, the same in every chapter.

    The roles are the keys of `PALETTE`: bound (what a theorem promises), construction (weights written down), best (the
    best possible), trained, floor (what no choice can beat), data, reference (a slope to compare with). `more`
    overrides.
    """
    if name not in PALETTE:
        raise ValueError(f"unknown role {name!r}; allowed are {', '.join(PALETTE)}")
    return {"color": PALETTE[name], **_ROLES[name], **more}


def figure(rows=1, cols=1, *, width=6.4, height=None, **subplots):
    """A figure in the book's style, and its axes: one `Axes`, or an array of them, as `Figure.subplots` gives.

    `width` and `height` are in inches; `subplots` are arguments of `Figure.subplots`, such as `sharex`, `sharey`,
    `width_ratios`. The figure is not known to pyplot: it is shown when `plate` shows it, and only then.
    """
    if height is None:
        height = 0.4 + rows * (3.4 if cols == 1 else 2.8)
    for name, size, most in (("width", width, LARGEST[0]), ("height", height, LARGEST[1])):
        if not 1 <= size <= most:
            raise ValueError(f"{name} is {size:g} inches; allowed is 1 to {most:g}")
    with rc_context(_STYLE):
        fig = Figure(figsize=(width, height), dpi=DPI, layout="constrained", facecolor="white")
        axes = fig.subplots(rows, cols, **subplots)
        for ax in np.ravel(axes):
            ax.tick_params(labelsize=11)
    return fig, axes


# ---------------------------------------------------------------- plates


class Plate:
    """A figure with its long description: the PNG to look at, the text to read and to compare."""

    def __init__(self, fig, alt):
        if not isinstance(fig, Figure):
            raise TypeError(f"fig is of type {type(fig).__name__}; a matplotlib Figure is wanted")
        if not isinstance(alt, str) or not alt.strip():
            raise ValueError(f"alt is {alt!r}; say in a sentence what the figure shows")
        if any(size > most for size, most in zip(fig.get_size_inches(), LARGEST, strict=True)):
            wide, high = fig.get_size_inches()
            raise ValueError(
                f"the figure measures {wide:g} by {high:g} inches; allowed is up to {LARGEST[0]:g} by {LARGEST[1]:g}"
            )
        self.text = f"Figure: {' '.join(alt.split())}\n{describe(fig)}"
        self.png = png(fig)
        self.width = round(fig.get_size_inches()[0] * 100)

    def __repr__(self):
        return self.text

    def _repr_mimebundle_(self, include=None, exclude=None):
        data = {"text/plain": self.text, "image/png": base64.b64encode(self.png).decode()}
        return data, {"image/png": {"width": self.width}}


def plate(fig, alt):
    """Show a figure. `alt` says in one sentence what there is to see; the long description is made from the figure.

    The output holds the picture (image/png) and, as text/plain, "Figure: " + alt and the description: the alternative
    text of the picture in the book, and what is compared when the notebook is checked. A figure in which something is
    missing raises `ValueError`.
    """
    from IPython.display import display

    display(Plate(fig, alt))
    if "matplotlib.pyplot" in sys.modules:  # a figure made with pyplot would be shown again at the end of the cell
        sys.modules["matplotlib.pyplot"].close(fig)


def png(fig, dpi=DPI, colours=128):
    """The figure as PNG bytes: opaque, small (a palette, unless there is a colour scale), the same in every run."""
    with rc_context(_STYLE):
        fig.draw_without_rendering()
        for ax in fig.axes:
            _spread_labels(ax)
        raw = io.BytesIO()
        fig.savefig(raw, format="png", dpi=dpi, facecolor="white", metadata={"Software": None})
    picture = Image.open(raw).convert("RGB")
    if not any(artist.get_array() is not None for ax in fig.axes for artist in (*ax.images, *ax.collections)):
        picture = picture.quantize(colours, dither=Image.Dither.NONE)
    small = io.BytesIO()
    picture.save(small, format="png", optimize=True)
    return small.getvalue()


# ---------------------------------------------------------------- labels at the lines themselves


class _EndLabel(Annotation):
    """The name of a line, written at its last visible point; `_spread_labels` keeps such names apart."""


def label_line(ax, line, text=None):
    """Write a line's name at its end, in its colour, instead of in a legend. Returns the text.

    `text` defaults to the line's label. Names that would overlap are moved apart when the figure is shown.
    """
    text = line.get_label() if text is None else text
    if not text or text.startswith("_"):
        raise ValueError("the line has no name; give text")
    line.set_label(text)
    x, y = (np.asarray(v, dtype=float) for v in line.get_data(orig=False))
    seen = np.flatnonzero(np.isfinite(x) & np.isfinite(y))
    if not seen.size:
        raise ValueError(f"the line {text!r} has no finite point to write its name at")
    label = _EndLabel(
        text,
        (x[seen[-1]], y[seen[-1]]),
        xytext=(5, 0),
        textcoords="offset points",
        color=_readable(line.get_color()),
        va="center",
        fontsize=11,
    )
    ax.add_artist(label)
    label.set(annotation_clip=False, clip_on=False)
    return label


@sentences.register
def _(label: _EndLabel, ax, listed):
    return []  # the name is told with its line


def _spread_labels(ax):
    """Move the names at line ends apart, up and down as little as needed, and keep them above the foot of the axes."""
    labels = [artist for artist in ax.texts if isinstance(artist, _EndLabel)]
    if not labels:
        return
    points = 72 / ax.figure.dpi
    low, high = (edge * points for edge in ax.get_window_extent().intervaly)
    ends = np.array([ax.transData.transform(label.xy)[1] * points for label in labels])
    order = np.argsort(ends, kind="stable")
    gap = 1.25 * labels[0].get_fontsize()
    places = np.clip(ends[order], low, high)
    for _ in range(200):
        push = np.maximum(gap - np.diff(places), 0) / 2
        places[:-1] -= push
        places[1:] += push
    for i, floor in enumerate(low + gap / 2 + gap * np.arange(len(places))):
        places[i] = max(places[i], floor)
    for i, place in zip(order, places, strict=True):
        labels[i].xyann = (5, place - ends[i])


def _readable(colour):
    """The colour, darkened until text in it has a contrast of 4.5 to 1 on white."""
    rgb = np.array(to_rgb(colour))
    while True:
        linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
        if 1.05 / (linear @ (0.2126, 0.7152, 0.0722) + 0.05) >= 4.5:
            return tuple(rgb)
        rgb = rgb * 0.95


# ---------------------------------------------------------------- views


def _array(values, name, dimensions):
    """`values` (list, array or tensor) as a float array of the wanted dimension."""
    if hasattr(values, "detach"):
        values = values.detach().cpu().numpy()
    try:
        array = np.asarray(values, dtype=float)
    except (TypeError, ValueError):
        raise TypeError(f"{name} holds no numbers: {type(values).__name__}") from None
    if array.ndim not in dimensions or not array.size:
        wanted = " or ".join(map(str, dimensions))
        raise ValueError(f"{name} has shape {array.shape}; wanted is a non-empty array of {wanted} dimension(s)")
    return array


def attention_map(ax, weights, *, title=None, bar=True, greatest=None):
    """How much the token at position t (row) takes from position s (column), as an image. Returns the image.

    `weights` is (T, T), one head of `Transformer.attention_maps`; the future (s > t) is left blank where it is zero.
    Chapter Foundations, equation (f:head-kernel): without dot product each row is the same kernel, shifted.
    """
    weights = _array(weights, "weights", (2,))
    rows, columns = np.indices(weights.shape)
    blank = (columns > rows) & (weights == 0)
    image = ax.imshow(np.ma.masked_array(weights, blank), vmin=0, vmax=greatest, interpolation="nearest", cmap="Blues")
    ax.grid(False)
    ax.set(xlabel="attended position s", ylabel="position t")
    if title:
        ax.set_title(title)
    if bar:
        ax.figure.colorbar(image, ax=ax, label="weight", shrink=0.85)
    return image


def kernel_lines(ax, kernels, *, lags=None, labels=True, xlabel="lag s", ylabel="weight"):
    """Kernels by lag, one line each, with its name at its end. Returns the lines.

    `kernels` maps names to arrays over the lags 0, 1, 2, …, or over `lags` if given. Scales may be set before or after.
    Chapter Foundations, equation (f:head-kernel).
    """
    if not kernels:
        raise ValueError("kernels is empty; a dict of name -> array is wanted")
    lines = []
    for name, kernel in kernels.items():
        kernel = _array(kernel, f"kernel {name!r}", (1,))
        where = np.arange(kernel.size) if lags is None else _array(lags, "lags", (1,))
        if where.shape != kernel.shape:
            raise ValueError(f"kernel {name!r} has {kernel.size} entries for {where.size} lags; as many are wanted")
        lines += ax.plot(where, kernel, label=str(name))
    if labels:
        for line in lines:
            label_line(ax, line)
    ax.set(xlabel=xlabel, ylabel=ylabel)
    return lines


def residual_slots(ax, values, slots, *, bar=True):
    """The residual stream, with its named slots marked. Returns what was drawn.

    `values` is one token's (D,), drawn as bars, or (T, D), drawn as an image; `slots` maps names to slices of the D
    coordinates. Slots may leave coordinates free, but do not overlap.
    """
    values = _array(values, "values", (1, 2))
    width = values.shape[-1]
    places = {name: range(*part.indices(width)) for name, part in slots.items()}
    if not places:
        raise ValueError("slots is empty; a dict of name -> slice is wanted")
    taken = set()
    for name, place in places.items():
        if not len(place) or place.step != 1 or taken & set(place):
            raise ValueError(
                f"slot {name!r} is {slots[name]!r}; a slice of the {width} coordinates is wanted, "
                "not empty, overlapping no other"
            )
        taken |= set(place)
    if values.ndim == 1:
        drawn = [
            ax.bar(list(place), values[place.start : place.stop], color=c)
            for place, c in zip(places.values(), cycle(_SERIES["color"]), strict=False)
        ]
        ax.axhline(0, color="#000000", linewidth=0.8)
        ax.set_ylabel("value")
    else:
        limit = float(np.abs(values).max()) or 1.0
        drawn = ax.imshow(values, aspect="auto", cmap="PuOr", vmin=-limit, vmax=limit, interpolation="nearest")
        ax.set_ylabel("position t")
        if bar:
            ax.figure.colorbar(drawn, ax=ax, label="value", shrink=0.85)
    ax.grid(False)
    for place in places.values():
        ax.axvline(place.start - 0.5, color="#767676", linewidth=0.8)
    ax.set_xticks([(place.start + place.stop - 1) / 2 for place in places.values()], labels=list(places))
    ax.set(xlabel="slot of the residual stream", xlim=(-0.5, width - 0.5))
    return drawn


def lookup_graph(ax, lags, *, nesting=0, length=None, words=None, title=None):
    """Which tokens one output reads: a row of positions, and an arrow from t to each token that is fetched.

    `lags` are $t_1,\\dots,t_M$, all counted from t, and `nesting` is $K$. A dashed arrow below the row leads from a
    fetched token to one whose place it helps to tell: to token i from those before it, if i ≤ K, and from the first K
    if i > K. (All places may depend on the token at t.) `length` is the number of positions drawn, `words` are written
    into their boxes, the last one at t. Returns the arrows of the look-ups. Chapter Adaptive memory, definitions
    a:def-warmup and a:def-nested.
    """
    if not len(lags) or not all(isinstance(lag, int | np.integer) and lag >= 1 for lag in lags):
        raise ValueError(f"lags are {lags!r}; integers of at least 1 are wanted, one for each token that is read")
    if isinstance(nesting, bool) or nesting not in range(len(lags) + 1):
        raise ValueError(f"nesting is {nesting!r}; allowed is 0 to {len(lags)}, the number of look-ups")
    length = max(lags) + 2 if length is None else length
    if length <= max(lags):
        raise ValueError(
            f"length is {length!r}; the longest lag, {max(lags)}, needs at least {max(lags) + 1} positions"
        )
    if words is not None and len(words) != length:
        raise ValueError(f"{len(words)} words for {length} positions; as many are wanted")
    size = min(26.0, 300 / length)
    box = {"linestyle": "none", "marker": "s", "markersize": size, "markeredgecolor": "#595959", "zorder": 3}
    ax.plot(np.arange(1 - length, 1), np.zeros(length), **box, markerfacecolor="#ffffff", label="tokens")
    arrows = []
    for i, (lag, colour) in enumerate(zip(lags, cycle(_SERIES["color"]), strict=False), start=1):
        arrows.append(_arc(ax, 0, -lag, 1.0, color=colour, linestyle="-", label=f"look-up {i}"))
        ax.plot([-lag], [0], **{**box, "markerfacecolor": _pale(colour)}, label=f"token {i}")
        middle = {"ha": "center", "va": "center", "color": _readable(colour), "fontsize": 11, "zorder": 6}
        ax.text(-lag / 2, _height(lag), f"$t_{i}={lag}$", **middle, bbox={"color": "#ffffff", "pad": 1.0})
        for before in range(1, min(i - 1, nesting) + 1):
            if lags[before - 1] != lag:
                dashed = {"linestyle": "--", "linewidth": 1.2, "color": "#595959"}
                _arc(ax, -lags[before - 1], -lag, -1.0, **dashed, label=f"token {before} tells where token {i} is")
    ax.plot([0], [0], **{**box, "markerfacecolor": "#dddddd"}, label="the token at t")
    for place, word in enumerate(words or (), start=1 - length):
        ax.text(place, 0, str(word), ha="center", va="center", fontsize=min(11.0, 0.45 * size), zorder=4)
    ax.grid(False)
    ax.spines[:].set_visible(False)
    ax.tick_params(length=0)
    ax.set_yticks([])
    ax.set_xticks(np.arange(1 - length, 1), labels=[*(f"−{lag}" for lag in range(length - 1, 0, -1)), "t"])
    below = -1.5 if nesting and len(lags) > 1 else -0.7
    ax.set(xlabel="positions, counted from t", xlim=(0.3 - length, 0.7), ylim=(below, _height(max(lags)) + 0.35))
    without_labels(ax)
    if title:
        ax.set_title(title)
    return arrows


def _height(distance):
    return 0.9 + 0.35 * distance


def _arc(ax, start, end, side, **style):
    """Half an ellipse from position to position, above (side 1) or below (-1) the row, with a head at its end."""
    angle = np.linspace(0.0, np.pi, 33)
    middle, half = (start + end) / 2, (start - end) / 2
    high = _height(abs(start - end)) if side > 0 else 1.2
    x, y = middle + half * np.cos(angle), side * (0.5 + (high - 0.5) * np.sin(angle))
    (line,) = ax.plot(x, y, **style)
    head = {"marker": "v" if side > 0 else "^", "markersize": 7, "linestyle": "none", "zorder": 5}
    head["color"] = style["color"]
    ax.plot(x[-1:], y[-1:], **head, label="its head")
    return line


def _pale(colour):
    """The colour, mixed with white: a ground for dark text."""
    return tuple(0.3 * np.array(to_rgb(colour)) + 0.7)


def rate_line(ax, x, y0, slope, label=None):
    """A reference rate: y0 (x / x[0])^slope, straight on log-log axes, named at its end. Returns the line."""
    x = _array(x, "x", (1,))
    if not (np.all(x > 0) and y0 > 0):
        raise ValueError(f"a rate is drawn through positive values; x starts at {x.min():g}, y0 is {y0:g}")
    (line,) = ax.plot(x, y0 * (x / x[0]) ** slope, **role("reference"), label=label)
    if label:
        label_line(ax, line)
    return line


# ---------------------------------------------------------------- explorers

MOST_FRAMES, FRAME_BYTES = 12, 40_000


def explorer(frames, *, label, values, alt):
    """A slider through pictures drawn beforehand, for a static page and for a running kernel alike.

    The link between slider and picture lives in the browser: no kernel is needed, and under one it is the same object.
    `frames` is a function of a value that returns a `Figure`, or a list with one `Figure` for each of the `values`;
    `label` names what the slider changes, `alt` says what the pictures show. The slider is an ordinary one: Tab reaches
    it, arrow keys move it. Next to it stand the numbers of all frames, folded away for readers, and compared when the
    notebook is checked.
    """
    from IPython.display import display

    figures = _frames(frames, label, values, alt)
    display(slider_of(figures, label=label, values=values, alt=alt))
    display(_Digest(figures, label, values))


def _frames(frames, label, values, alt):
    for name, text in (("label", label), ("alt", alt)):
        if not isinstance(text, str) or not text.strip():
            raise ValueError(f"{name} is {text!r}; a text is wanted")
    if not 2 <= len(values) <= MOST_FRAMES:
        raise ValueError(f"{len(values)} values; an explorer has 2 to {MOST_FRAMES}")
    figures = [frames(value) for value in values] if callable(frames) else list(frames)
    if len(figures) != len(values) or not all(isinstance(fig, Figure) for fig in figures):
        raise ValueError(f"{len(figures)} frames for {len(values)} values; one Figure is wanted for each")
    return figures


def slider_of(figures, *, label, values, alt):
    """The widget of `explorer`: a slider whose index is linked, in the browser, to the picture shown."""
    import ipywidgets as widgets

    names = [_name(value) for value in values]
    pictures = []
    for fig, name in zip(figures, names, strict=True):
        data = png(fig, dpi=120, colours=64)
        if len(data) > FRAME_BYTES:
            raise ValueError(
                f"the frame {label} = {name} takes {len(data)} bytes; allowed are {FRAME_BYTES}: draw less, or smaller"
            )
        words = html.escape(f"{alt} ({label} = {name})", quote=True)
        source = f"data:image/png;base64,{base64.b64encode(data).decode()}"
        pictures.append(widgets.HTML(f'<img alt="{words}" src="{source}" style="max-width:100%;height:auto">'))
    slider = widgets.SelectionSlider(
        options=list(zip(names, range(len(names)), strict=True)),
        index=0,
        description=label,
        tooltip=f"{label}: {alt}",
        style={"description_width": "initial"},
        layout={"width": "auto", "max_width": "100%"},
    )
    stack = widgets.Stack(children=pictures, selected_index=0)
    widgets.jslink((slider, "index"), (stack, "selected_index"))
    return widgets.VBox([slider, stack])


class _Digest:
    """What the frames of an explorer show, in numbers: what they share once, then what changes from frame to frame."""

    def __init__(self, figures, label, values):
        described = [describe(fig, listed=5).splitlines() for fig in figures]
        shared = [line for line in described[0] if all(line in other for other in described)]
        parts = ["In every frame:", *shared] if shared else []
        for value, lines in zip(values, described, strict=True):
            parts += [f"{label} = {_name(value)}:", *(line for line in lines if line not in shared)]
        self.text = "\n".join(parts)

    def __repr__(self):
        return self.text

    def _repr_mimebundle_(self, include=None, exclude=None):
        numbers = f'<pre style="white-space:pre-wrap">{html.escape(self.text)}</pre>'
        folded = f"<details><summary>The frames in numbers</summary>{numbers}</details>"
        return {"text/plain": self.text, "text/html": folded}


def _name(value):
    return value if isinstance(value, str) else series([value])
