"""Imported into a copy of a notebook: every plate then also tells what it would say with one artist 1 % larger."""

from matplotlib.collections import Collection, PathCollection, QuadMesh
from matplotlib.container import BarContainer, ErrorbarContainer
from matplotlib.image import AxesImage
from matplotlib.lines import AxLine, Line2D
from matplotlib.quiver import Quiver

from memlib import describe, show

MUTANTS = "application/vnd.memlib.mutants+json"
SCALE = 1.01


def scaled(artist):
    """Scale what an artist shows; returns a function that undoes it, or None for artists without data, such as text."""
    if isinstance(artist, BarContainer):
        name = "width" if artist.orientation == "horizontal" else "height"
        return _set([(patch, name, getattr(patch, f"get_{name}")()) for patch in artist.patches])
    if isinstance(artist, ErrorbarContainer):
        return scaled(artist.lines[2][0])
    if isinstance(artist, AxLine):
        return _set([(artist, "slope", artist.get_slope())]) if artist.get_slope() else None
    if isinstance(artist, Line2D):
        return _set([(artist, "xdata", artist.get_xdata(orig=False)), (artist, "ydata", artist.get_ydata(orig=False))])
    if isinstance(artist, PathCollection):
        return _set([(artist, "offsets", artist.get_offsets().copy())])
    if isinstance(artist, AxesImage):
        return _set([(artist, "data", artist.get_array())])
    if isinstance(artist, QuadMesh):
        return _set([(artist, "array", artist.get_array())])
    if isinstance(artist, Quiver):
        u, v = artist.U.copy(), artist.V.copy()
        artist.set_UVC(u * SCALE, v * SCALE)
        return lambda: artist.set_UVC(u, v)
    if isinstance(artist, Collection):
        old = [path.vertices for path in artist.get_paths()]
        _vertices(artist, [v * SCALE for v in old])
        return lambda: _vertices(artist, old)
    return None


def _set(settings):
    for artist, name, value in settings:
        getattr(artist, f"set_{name}")(value * SCALE)
    return lambda: [getattr(artist, f"set_{name}")(value) for artist, name, value in settings]


def _vertices(artist, vertices):
    for path, v in zip(artist.get_paths(), vertices, strict=True):
        path.vertices = v


def mutants(fig):
    """The name of each artist's class, and the description of the figure with this artist scaled."""
    for ax in describe._axes_and_bars(fig)[0]:
        for artist in describe._drawn(ax):
            undo = scaled(artist)
            if undo:
                yield type(artist).__name__, describe.describe(fig)
                undo()


class DisturbedPlate(show.Plate):
    """A plate with its mutants."""

    def __init__(self, fig, alt):
        super().__init__(fig, alt)
        self.mutants = list(mutants(fig))

    def _repr_mimebundle_(self, include=None, exclude=None):
        data, metadata = super()._repr_mimebundle_()
        return {**data, MUTANTS: self.mutants}, metadata


show.Plate = DisturbedPlate
