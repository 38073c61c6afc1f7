"""Figures and their descriptions: every kind of artist tells its numbers, and what is missing raises."""

import io
import re
import sys
from itertools import pairwise

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.offsetbox import AnchoredText
from PIL import Image

from memlib import show
from memlib.describe import describe, number, series
from tools import compare

TOLERANCE = compare.Tolerance()
X = np.linspace(1, 4, 40)
WAVE = 2 + np.sin(5 * X) * X
GRID = np.outer(np.sin(np.arange(8)) + 1.3, np.cos(np.arange(9)) + 1.5)


def drawn(draw, scale=1.0):
    """The description of a figure in which `draw(ax, scale)` has drawn."""
    fig, ax = show.figure()
    ax.set(xlabel="x", ylabel="y", xlim=(0, 6), ylim=(-5, 9))
    draw(ax, scale)
    return describe(fig)


KINDS = {
    "line": lambda ax, k: ax.plot(X, k * WAVE),
    "short line": lambda ax, k: ax.plot([1, 2, 3], k * np.array([1.0, 4.0, 2.0])),
    "line along x": lambda ax, k: ax.plot(k * WAVE, X),
    "geometric line": lambda ax, k: ax.plot(X, k * 0.3**X),
    "geometric rate": lambda ax, k: ax.plot(np.arange(50), 0.3 ** (k * np.arange(50))),
    "horizontal line": lambda ax, k: ax.axhline(3.0 * k),
    "vertical line": lambda ax, k: ax.axvline(3.0 * k),
    "straight line": lambda ax, k: ax.axline((0, 1), slope=2.0 * k),
    "straight line by points": lambda ax, k: ax.axline((0, 1), (1, 2.0 * k)),
    "steps": lambda ax, k: ax.step([1, 2, 3], [k, 2 * k, k]),
    "points": lambda ax, k: ax.scatter(X, k * WAVE),
    "colours of points": lambda ax, k: ax.scatter(X, WAVE, c=k * WAVE),
    "sizes of points": lambda ax, k: ax.scatter(X, WAVE, s=k * WAVE**2),
    "bars": lambda ax, k: ax.bar(["a", "b"], [k, 2 * k]),
    "bars from a base": lambda ax, k: ax.bar([1, 2], [1, 2], bottom=[k, k]),
    "horizontal bars": lambda ax, k: ax.barh([1, 2], [k, 2 * k]),
    "histogram": lambda ax, k: ax.hist(k * WAVE, bins=5),
    "error bars": lambda ax, k: ax.errorbar([1, 2, 3], [1, 2, 3], yerr=k * np.array([0.5, 0.2, 0.1]), capsize=2),
    "centres of error bars": lambda ax, k: ax.errorbar([1, 2, 3], k * np.array([1, 2, 3]), yerr=1.0),
    "error bars along x": lambda ax, k: ax.errorbar([1, 2], [1, 2], xerr=[0.5 * k, 0.1], linestyle="none"),
    "band": lambda ax, k: ax.fill_between(X, WAVE - 1, WAVE + k),
    "band with gaps": lambda ax, k: ax.fill_between(X, 0, k * WAVE, where=WAVE > 1),
    "polygon": lambda ax, k: ax.fill([0, 1, 1], [0, 0, k]),
    "span": lambda ax, k: ax.axhspan(1, 2 * k),
    "image": lambda ax, k: ax.imshow(k * GRID),
    "image with holes": lambda ax, k: ax.imshow(np.where(GRID > 1, k * GRID, np.nan)),
    "mesh": lambda ax, k: ax.pcolormesh(np.arange(9), np.arange(8), k * GRID),
    "edges of a mesh": lambda ax, k: ax.pcolormesh(k * np.arange(10) ** 2, np.arange(9), GRID),
    "contours": lambda ax, k: ax.contour(k * GRID, levels=[0.5, 1.0]),
    "segments": lambda ax, k: ax.vlines([1, 2], 0, [k, 2 * k]),
    "arrows": lambda ax, k: ax.quiver([1, 2], [1, 2], [1, k], [1, 0]),
    "stems": lambda ax, k: ax.stem([1, 2], [k, 2 * k]),
    "annotation": lambda ax, k: ax.annotate("here", (1.0 * k, 2)),
    "text": lambda ax, k: ax.text(1.0 * k, 2, "here"),
    "inset": lambda ax, k: ax.inset_axes((0.5, 0.5, 0.4, 0.4), xlabel="u", ylabel="v", ylim=(0, 9)).plot(
        [1, 2], [k, 3]
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_one_per_cent_shows(kind):
    draw = KINDS[kind]
    if kind == "inset":  # an inset alone leaves its axes empty

        def draw(ax, k):
            ax.plot([0, 1], [0, 1])
            KINDS["inset"](ax, k)

    text = drawn(draw)
    assert compare.texts(text, drawn(draw), TOLERANCE) == []
    assert compare.texts(text, drawn(draw, 1.01), TOLERANCE)


@pytest.mark.parametrize("place", range(40))
@pytest.mark.parametrize("kind", ["line", "image"])
def test_one_changed_point_shows_wherever_it_is(kind, place):
    def draw(ax, k):
        values = WAVE.copy()
        values[place] += k
        ax.plot(X, values) if kind == "line" else ax.imshow(values.reshape(5, 8))

    assert compare.texts(drawn(draw), drawn(draw, 1.01), TOLERANCE)


def test_a_moved_pixel_shows():
    def draw(ax, k):
        pixels = np.zeros((30, 30))
        pixels[[3, 10], [5, 7 if k == 1 else 8]] = 1
        ax.imshow(pixels)

    assert compare.texts(drawn(draw), drawn(draw, 2), TOLERANCE)


def test_two_exchanged_points_show():
    def draw(ax, k):
        values = WAVE.copy()
        if k != 1:
            values[[5, 6]] = values[[6, 5]]
        ax.plot(X, values)

    assert compare.texts(drawn(draw), drawn(draw, 2), TOLERANCE)


CHANGES = {
    "x label": lambda ax: ax.set_xlabel("other"),
    "y label": lambda ax: ax.set_ylabel("other"),
    "title": lambda ax: ax.set_title("other"),
    "scale": lambda ax: ax.set_yscale("log"),
    "limits": lambda ax: ax.set_xlim(0, 5),
    "name of a line": lambda ax: ax.lines[0].set_label("other"),
    "legend": lambda ax: ax.legend(["other"]),
    "figure title": lambda ax: ax.figure.suptitle("other"),
    "inverted axis": lambda ax: ax.invert_yaxis(),
    "ticks": lambda ax: ax.set_xticks([1, 2], labels=["one", "two"]),
    "figure text": lambda ax: ax.figure.text(0.5, 0.5, "other"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_wording_shows(change):
    def draw(ax, k):
        ax.plot(X, WAVE, label="name")
        if k != 1:
            CHANGES[change](ax)

    assert compare.texts(drawn(draw), drawn(draw, 2), TOLERANCE)


def test_hidden_artists_are_not_described():
    assert "- line" not in drawn(lambda ax, k: [ax.axhspan(0, 1), ax.plot([1, 2], [3, 4])[0].set_visible(False)])


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1, "1"),
        (-0.0, "0"),
        (2.5, "2.5"),
        (1 / 3, "0.333333"),
        (123456.4, "1.23456e+05"),
        (1e-20, "1e-20"),
        (1e6, "1000000"),
        (float("nan"), "nan"),
        (-float("inf"), "-inf"),
        (99999.96, "1.00000e+05"),
        (12345.6, "12345.6"),
    ],
)
def test_number(value, text):
    assert number(value) == text


def test_series():
    assert series([1, 2.5]) == "1, 2.5"
    assert series([]) == "none"
    assert series(np.arange(20)) == "20 values evenly spaced from 0 to 19"
    assert series(2.0 ** np.arange(20)) == "20 values, each 2 times the one before, from 1 to 524288"
    assert series([np.nan] * 20) == "20 values, none finite"
    text = series(np.r_[np.arange(20.0) ** 2, np.nan])
    assert "sampled from 21 values, 1 not finite: least 0, greatest 361" in text and "variation 361" in text


# ---------------------------------------------------------------- plates


def test_plate_shows_picture_and_text(monkeypatch):
    shown = []
    monkeypatch.setattr("IPython.display.display", shown.append)
    fig, ax = show.figure()
    ax.plot([1, 2], [3, 4])
    ax.set(xlabel="x", ylabel="y")
    assert show.plate(fig, alt=" A  rising\nline ") is None
    data, metadata = shown[0]._repr_mimebundle_()
    assert data["text/plain"].startswith("Figure: A rising line\nAxes: x axis")
    assert repr(shown[0]) == data["text/plain"]
    assert metadata["image/png"]["width"] == 640
    picture = Image.open(io.BytesIO(shown[0].png))
    assert picture.size == (960, 570) and picture.convert("RGBA").getpixel((0, 0)) == (255, 255, 255, 255)
    assert len(shown[0].png) < 30_000
    assert not picture.info.get("Software")


def test_the_same_figure_gives_the_same_bytes():
    def picture():
        fig, ax = show.figure()
        show.kernel_lines(ax, {"a": WAVE, "b": WAVE / 2})
        return show.Plate(fig, "waves").png

    assert picture() == picture()


def test_style_and_pyplot_are_left_alone():
    before = dict(mpl.rcParams)
    fig, ax = show.figure(2, 1, sharex=True)
    ax[0].plot([1], [1])
    show.png(fig)
    assert dict(mpl.rcParams) == before
    if "matplotlib.pyplot" in sys.modules:
        assert not sys.modules["matplotlib.pyplot"].get_fignums()


def test_a_pyplot_figure_is_closed(monkeypatch):
    monkeypatch.setattr("IPython.display.display", lambda _: None)
    from matplotlib import pyplot

    fig, ax = pyplot.subplots()
    ax.plot([1, 2])
    ax.set(xlabel="x", ylabel="y")
    show.plate(fig, alt="line")
    assert not pyplot.get_fignums()


def axes(**settings):
    fig, ax = show.figure()
    ax.set(**{"xlabel": "x", "ylabel": "y", **settings})
    return fig, ax


def with_line(**settings):
    fig, ax = axes(**settings)
    ax.plot([1, 2], [1, 2])
    return fig


def with_strange_artist():
    fig, ax = axes()
    ax.add_artist(AnchoredText("note", loc="upper left"))
    return fig


def with_nameless_colour_bar():
    fig, ax = axes()
    fig.colorbar(ax.imshow(GRID))
    return fig


BAD_PLATES = [
    (lambda: show.Plate(with_line(), ""), ValueError, "alt is ''; say in a sentence"),
    (lambda: show.Plate(with_line(), "  "), ValueError, "alt is '  '"),
    (lambda: show.Plate(with_line(), None), ValueError, "alt is None"),
    (lambda: show.Plate("picture.png", "a"), TypeError, "fig is of type str; a matplotlib Figure"),
    (lambda: show.Plate(axes()[0], "a"), ValueError, "Axes: nothing is drawn in it"),
    (lambda: show.Plate(Figure(), "a"), ValueError, "the figure has no axes"),
    (lambda: show.Plate(with_line(xlabel=""), "a"), ValueError, "Axes lacks a label on its x axis"),
    (lambda: show.Plate(with_line(ylabel=" "), "a"), ValueError, "Axes lacks a label on its y axis"),
    (lambda: show.Plate(with_strange_artist(), "a"), ValueError, "cannot describe an artist of class AnchoredText"),
    (lambda: show.Plate(with_nameless_colour_bar(), "a"), ValueError, "a colour bar lacks a label"),
    (
        lambda: show.Plate(Figure(figsize=(20, 3)), "a"),
        ValueError,
        "measures 20 by 3 inches; allowed is up to 10 by 12",
    ),
    (lambda: show.figure(width=40), ValueError, "width is 40 inches; allowed is 1 to 10"),
    (lambda: show.figure(rows=9), ValueError, "height is 31 inches"),
    (lambda: show.role("magic"), ValueError, "unknown role 'magic'; allowed are bound, construction"),
    (lambda: show.label_line(axes()[1], with_line().axes[0].lines[0]), ValueError, "the line has no name"),
    (
        lambda: show.label_line(axes()[1], axes()[1].plot([np.nan], [1])[0], "a"),
        ValueError,
        "the line 'a' has no finite point",
    ),
    (lambda: show.attention_map(axes()[1], [1, 2]), ValueError, r"weights has shape \(2,\)"),
    (lambda: show.attention_map(axes()[1], [["a"]]), TypeError, "weights holds no numbers: list"),
    (lambda: show.kernel_lines(axes()[1], {}), ValueError, "kernels is empty"),
    (lambda: show.kernel_lines(axes()[1], {"k": [[1]]}), ValueError, r"kernel 'k' has shape \(1, 1\)"),
    (lambda: show.kernel_lines(axes()[1], {"k": [1]}, lags=[1, 2]), ValueError, "kernel 'k' has 1 entries for 2 lags"),
    (lambda: show.residual_slots(axes()[1], [1, 2], {}), ValueError, "slots is empty"),
    (
        lambda: show.residual_slots(axes()[1], [1, 2], {"a": slice(2, 3)}),
        ValueError,
        r"slot 'a' is slice\(2, 3, None\)",
    ),
    (
        lambda: show.residual_slots(axes()[1], [1, 2], {"a": slice(0, 2), "b": slice(1, 2)}),
        ValueError,
        "slot 'b' .* overlapping no other",
    ),
    (lambda: show.rate_line(axes()[1], [0, 1], 1, -1), ValueError, "x starts at 0, y0 is 1"),
    (lambda: show.rate_line(axes()[1], [1, 2], -1, -1), ValueError, "y0 is -1"),
]


@pytest.mark.parametrize(("call", "error", "message"), BAD_PLATES, ids=range(len(BAD_PLATES)))
def test_bad_input(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_pictures_may_go_without_labels():
    fig, ax = show.figure()
    show.without_labels(ax).imshow(GRID)
    assert "x axis, linear scale" in describe(fig)
    fig, ax = show.figure()
    ax.imshow(GRID)
    ax.set_axis_off()
    assert "Axes, without axes." in describe(fig)


def test_shared_labels_are_enough():
    fig, (left, right) = show.figure(1, 2, sharey=True)
    for ax in (left, right):
        ax.plot([1, 2])
        ax.set_xlabel("x")
    left.set_ylabel("y")
    assert describe(fig).count('y axis "y"') == 2
    fig, (left, right) = show.figure(1, 2)
    for ax in (left, right):
        ax.plot([1, 2])
    fig.supxlabel("x")
    fig.supylabel("y")
    assert describe(fig).count('x axis "x"') == 2


# ---------------------------------------------------------------- style and views


def luminance(colour):
    rgb = np.array(mpl.colors.to_rgb(colour))
    return np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4) @ (0.2126, 0.7152, 0.0722)


def test_roles_differ_without_colour_and_stand_out_from_white():
    looks = [(show.role(name)["linestyle"], show.role(name).get("marker")) for name in show.PALETTE]
    assert len(set(looks)) == len(looks)
    assert len(set(show.PALETTE.values())) == len(show.PALETTE)
    assert all(1.05 / (luminance(colour) + 0.05) >= 3 for colour in show.PALETTE.values())
    assert show.role("trained", marker="x")["marker"] == "x"


def test_names_at_line_ends_are_kept_apart_and_legible():
    fig, ax = show.figure()
    lines = show.kernel_lines(ax, {f"k{i}": np.linspace(1, 0.001 * i, 30) for i in range(5)})
    show.png(fig)
    labels = [text for text in ax.texts if text.get_text().startswith("k")]
    boxes = sorted((text.get_window_extent() for text in labels), key=lambda box: box.y0)
    assert len(labels) == len(lines) == 5
    assert all(low.y1 <= high.y0 for low, high in pairwise(boxes))
    assert boxes[0].y0 >= ax.get_window_extent().y0
    assert max(box.x1 for box in boxes) <= fig.bbox.x1
    assert all(1.05 / (luminance(text.get_color()) + 0.05) >= 4.5 for text in labels)


def test_attention_map_blanks_the_future():
    fig, ax = show.figure()
    image = show.attention_map(ax, np.tril(np.ones((4, 4))))
    assert image.get_array().mask.sum() == 6
    text = describe(fig)
    assert 'Colour bar "weight", from 0 to 1.' in text and "4 by 4 values" in text


def test_residual_slots_in_both_forms():
    slots = {"token": slice(0, 2), "fetched": slice(2, 3)}
    for values, word in (([1.0, -2.0, 0.5, 0.0], "bars: at 0, 1; lengths 1, -2"), (np.eye(4), "image")):
        fig, ax = show.figure()
        show.residual_slots(ax, values, slots)
        text = describe(fig)
        assert word in text and "ticks token, fetched" in text


def test_lookup_graph_shows_every_token_that_is_read():
    fig, ax = show.figure(height=3)
    arrows = show.lookup_graph(ax, [3, 6, 2], nesting=2, length=8, words="abcdefgh", title="look-ups")
    assert [tuple(a.get_xdata()[[0, -1]]) for a in arrows] == [(0, -3), (0, -6), (0, -2)]
    text = describe(fig)
    assert "ticks −7, −6, −5, −4, −3, −2, −1, t" in text and 'text "$t_2=6$" at (-3, ' in text
    told = re.findall(r"token (\d) tells where token (\d) is\": 33 points, x (\S+), .*, (\S+) \(sampled", text)
    assert [(a, b) for a, b, *_ in told] == [("1", "2"), ("1", "3"), ("2", "3")]
    assert [t.get_text() for t in ax.texts if t.get_text() in "abcdefgh"] == list("abcdefgh")
    assert len(show.Plate(fig, "look-ups").png) < 40_000


def test_in_the_warm_up_no_token_tells_where_another_is():
    fig, ax = show.figure(height=3)
    show.lookup_graph(ax, [1, 4])
    assert "tells where" not in describe(fig) and ax.get_xlim()[0] == pytest.approx(-5.7)


def test_a_changed_look_up_shows():
    def draw(k):
        fig, ax = show.figure(height=3)
        show.lookup_graph(ax, [2, 5 if k == 1 else 4], nesting=2, length=7)
        return describe(fig)

    assert compare.texts(draw(1), draw(1), TOLERANCE) == []
    assert compare.texts(draw(1), draw(2), TOLERANCE)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"lags": []}, r"lags are \[\]; integers of at least 1"),
        ({"lags": [0]}, r"lags are \[0\]"),
        ({"lags": [1.5]}, r"lags are \[1.5\]"),
        ({"nesting": 3}, "nesting is 3; allowed is 0 to 2"),
        ({"length": 5}, "the longest lag, 5, needs at least 6 positions"),
        ({"words": ["a"]}, "1 words for 7 positions"),
    ],
)
def test_bad_lookup_graphs(arguments, message):
    _fig, ax = show.figure()
    with pytest.raises(ValueError, match=message):
        show.lookup_graph(ax, **{"lags": [2, 5], **arguments})


def test_rate_line_has_the_slope():
    _fig, ax = show.figure()
    line = show.rate_line(ax, [1, 10, 100], 2.0, -0.5, "rate")
    assert np.allclose(line.get_ydata(), [2, 2 / np.sqrt(10), 0.2])
    assert [text.get_text() for text in ax.texts] == ["rate"]


# ---------------------------------------------------------------- explorers


def frame(p):
    fig, ax = show.figure(width=4)
    show.kernel_lines(ax, {"kernel": np.exp(-p * np.arange(30))})
    ax.set_ylim(0, 1)
    return fig


def test_explorer(monkeypatch):
    shown = []
    monkeypatch.setattr("IPython.display.display", shown.append)
    show.explorer(frame, label="slope p", values=[0.1, 1, 2], alt='A "kernel"')
    box, digest = shown
    slider, stack = box.children
    assert [name for name, _ in slider.options] == ["0.1", "1", "2"]
    assert slider.description == "slope p" and "kernel" in slider.tooltip
    assert stack.selected_index == 0 and len(stack.children) == 3
    for child, value in zip(stack.children, ("0.1", "1", "2"), strict=True):
        assert f'alt="A &quot;kernel&quot; (slope p = {value})"' in child.value
        assert len(child.value) < 4 / 3 * show.FRAME_BYTES + 500
    data = digest._repr_mimebundle_()
    assert data["text/plain"].startswith('In every frame:\nAxes: x axis "lag s"')
    assert re.findall(r"slope p = (\S+):", data["text/plain"]) == ["0.1", "1", "2"]
    assert "0.904837" in data["text/plain"] and "<details>" in data["text/html"]


def test_explorer_link_is_in_the_browser(monkeypatch):
    made = []
    monkeypatch.setattr("ipywidgets.jslink", lambda source, target: made.append((source, target)))
    box = show.slider_of([frame(1), frame(2)], label="p", values=["one", "two"], alt="kernel")
    slider, stack = box.children
    assert made == [((slider, "index"), (stack, "selected_index"))]


def test_explorer_takes_a_list_of_figures(monkeypatch):
    shown = []
    monkeypatch.setattr("IPython.display.display", shown.append)
    show.explorer([frame(1), frame(2)], label="p", values=["one", "two"], alt="kernel")
    assert "p = two:" in repr(shown[1])


@pytest.mark.parametrize("place", range(3))
def test_a_change_in_any_frame_shows(place):
    def digest(k):
        values = [0.1, 1.0, 2.0]
        figures = [frame(value * (k if i == place else 1)) for i, value in enumerate(values)]
        return repr(show._Digest(figures, "p", values))

    assert compare.texts(digest(1), digest(1.01), TOLERANCE)


def crowded(_):
    fig, ax = axes()
    ax.imshow(np.random.default_rng(0).normal(size=(300, 300)))
    return fig


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"label": ""}, "label is ''; a text is wanted"),
        ({"alt": None}, "alt is None; a text is wanted"),
        ({"values": [1]}, "1 values; an explorer has 2 to 12"),
        ({"values": range(13)}, "13 values; an explorer has 2 to 12"),
        ({"frames": [frame(1)]}, "1 frames for 2 values; one Figure"),
        ({"frames": lambda _: "picture"}, "2 frames for 2 values; one Figure"),
        ({"frames": crowded}, r"the frame p = 1 takes \d+ bytes; allowed are 40000"),
    ],
)
def test_bad_explorers(arguments, message, monkeypatch):
    monkeypatch.setattr("IPython.display.display", lambda _: None)
    with pytest.raises(ValueError, match=message):
        show.explorer(**{"frames": frame, "label": "p", "values": [1, 2], "alt": "kernel", **arguments})
