r"""Rates and coefficients that fit several kernels at once (chapter Essentially sparse memory, equation e:varpro).

All heads serve all kernels: $\varphi_i=\sum_hc_{ih}w_h$ with common rates $p_h$. The rates are found by variable
projection, least squares in the coefficients eliminated, from arithmetic progressions (those of Lemma e:lem-fill and
Theorem e:thm-smooth), geometric ones, and for lin heads what ESPRIT reads off the Hankel matrices. The coefficients
minimise

$$\sum_iL_i\Bigl(\sum_{1\le s<N}|\rho_i(s)-\varphi_i(s)|+\sum_h\mu_h|c_{ih}|\Bigr),$$

kernel error plus rounding, $\mu_h$ being what rounding costs per unit of $c_h$. Lag 0 belongs to the residual
connection. Without the second sum the best coefficients of many heads would be far too large for double precision.
"""

import math

import numpy as np
from mpmath import mp, mpf
from scipy.linalg import solve_triangular
from scipy.optimize import least_squares

from memlib.construct.construction import ROUND
from memlib.kernels import DIRECT_ROWS
from memlib.sums.best import _least_absolute as _from_dual
from memlib.sums.hankel import SLOWEST, STEEPEST, real_rates, shift_invariant_bases

__all__ = ["coefficients", "fit", "starts"]

_LOWEST, _HIGHEST = math.log(SLOWEST), math.log(STEEPEST)
_STEPS = 40  # evaluations of one run of variable projection
_DIGITS = 50  # digits in which coefficients are solved for


def starts(length: int, heads: int, encoding: str) -> dict[str, np.ndarray]:
    r"""The rates that are tried, by name: $\alpha h$ (lin), $1+\alpha h$ (log), and geometric progressions."""
    h = np.arange(1, heads + 1)
    if encoding == "lin":
        made = {f"arithmetic, alpha {a:.3g}": a * h for a in (2 / length, 8 / length, 0.1, 0.3)}
        ends = ((1 / length, 1.0), (4 / length, 0.5), (0.05, 3.0), (0.2, 1.5))
    else:
        made = {f"arithmetic, alpha {a:.3g}": 1 + a * h for a in (0.1, 0.3, 1.0)}
        ends = ((0.6, 4.0), (1.1, 12.0), (1.5, 30.0))
    for low, high in ends:
        rates = np.geomspace(low, high, heads) if heads > 1 else np.array([math.sqrt(low * high)])
        made[f"geometric, {low:.3g} to {high:.3g}"] = rates
    return made


def _read_off(kernels: np.ndarray, heads: int) -> dict[str, np.ndarray]:
    """For lin heads: rates that ESPRIT reads off the kernels' Hankel matrices, the heads shared out evenly."""
    shares = [heads // len(kernels) + (i < heads % len(kernels)) for i in range(len(kernels))]
    if 2 * max(shares) >= kernels.shape[1] - 2 or not np.abs(kernels[:, 1:]).sum(1).all():
        return {}
    parts = [real_rates(shift_invariant_bases(rho, share, True), share, apart=0.05)
             for rho, share in zip(kernels, shares, strict=True) if share]  # fmt: skip
    return {"ESPRIT": _apart(np.concatenate(parts))}


class _Kernels:
    """The kernels on lags 1..N-1, and the projections and programmes that belong to them."""

    def __init__(self, kernels: np.ndarray, importance, encoding: str, caution: float):
        self.encoding, self.caution, self.length = encoding, caution, kernels.shape[1]
        self.lags = np.arange(1, self.length)
        self.x = self.lags.astype(float) if encoding == "lin" else np.log(self.lags)
        self.importance = np.maximum(np.asarray(importance, dtype=float), 1e-12)
        self.wanted = kernels[:, 1:].T
        self.scaled = self.wanted * self.importance
        self.weights = np.ones(len(self.x))  # of the lags in least squares

    def columns(self, rates) -> np.ndarray:
        return np.exp(-np.outer(self.x, rates))

    def price(self, rates) -> np.ndarray:
        r"""$\mu_h$: what rounding may cost per unit of $|c_h|$, as `fixed_memory._rounding` counts it."""
        w = self.columns(rates)
        costs = (w * (len(rates) + 6 + 3 * np.outer(self.x, rates))).sum(0)
        square = (w**2).sum(0)
        if self.encoding == "lin":  # lag 0: the head itself, and the residual that takes it back
            costs, square = costs + len(rates) + 8, square + 1
        if self.length > DIRECT_ROWS:
            costs = costs + 8 * math.log2(2 * self.length) * math.sqrt(self.length) * np.sqrt(square)
        return self.caution * ROUND * costs

    def basis(self, rates, weighted: bool):
        """Orthonormal basis and triangle of the columns, continued below by the price of the coefficients."""
        columns, price = self.columns(rates), self.price(rates)
        if weighted:
            columns, price = columns * self.weights[:, None], price / math.sqrt(self.length)
        return np.linalg.qr(np.vstack([columns, np.diag(price)]))

    def project(self, theta):
        """What least squares leaves of all kernels at the rates exp(theta), and Kaufman's derivative of it."""
        rates = np.exp(theta)
        q, r = self.basis(rates, True)
        below = np.zeros((len(rates), self.wanted.shape[1]))
        y = np.vstack([self.scaled * self.weights[:, None], below])
        inside = q.T @ y
        rest = y - q @ inside
        rest -= q @ (q.T @ rest)
        slopes = -np.outer(self.x, rates) * self.columns(rates) * self.weights[:, None]
        moved = np.vstack([slopes, np.diag(below[:, 0])])
        moved -= q @ (q.T @ moved)
        with np.errstate(all="ignore"):
            c = solve_triangular(r, inside, check_finite=False)
        c = np.where(np.isfinite(c), c, 0.0)
        return rest.T.ravel(), np.vstack([-moved * c[:, i] for i in range(c.shape[1])])

    def search(self, rates) -> tuple[float, np.ndarray]:
        """Variable projection from the given rates: the squared remainder and the rates it leads to."""
        theta = np.clip(np.log(rates), _LOWEST + 1e-6, _HIGHEST - 1e-6)
        rest, slopes = self.project(theta)
        size = float(np.linalg.norm(rest))
        if not size > 0 or not slopes.any():  # nothing is left to be fitted
            return size**2, _apart(np.exp(theta))
        scale = 1 / size
        with np.errstate(all="ignore"):
            done = least_squares(lambda t: scale * self.project(t)[0], theta, lambda t: scale * self.project(t)[1],
                                 bounds=(_LOWEST, _HIGHEST), xtol=1e-10, ftol=1e-10, gtol=None,
                                 max_nfev=_STEPS)  # fmt: skip
        return 2 * done.cost / scale**2, _apart(np.exp(done.x))

    def solve(self, rates) -> tuple[float, np.ndarray, list[np.ndarray]]:
        """The least weighted sum at these rates, the coefficients, and per kernel which rows the optimum meets."""
        q, r = self.basis(rates, False)
        price, total, found, met = self.price(rates), 0.0, [], []
        for i, share in enumerate(self.importance):
            y = np.append(self.wanted[:, i], np.zeros(len(rates)))
            a = q.T @ y
            rest = y - q @ a
            size = float(np.abs(rest).max())
            if size > 1e-300:  # what is left, blown up: the programme's tolerances are then relative to it
                a = a + size * _least_absolute(q, rest / size)
            c = solve_triangular(r, a, check_finite=False)
            left = np.abs(y - np.vstack([self.columns(rates), np.diag(price)]) @ c)
            total += share * float(left.sum())
            found.append(c)
            met.append(np.argsort(np.abs(y - q @ a), kind="stable")[: len(rates)])
        return total, np.array(found), met

    def sharpened(self, rates, rows, kernel: int) -> np.ndarray | None:
        """The coefficients that meet the given rows exactly, in extended precision, rounded at the end."""
        lags = [int(j) for j in rows if j < len(self.x)]
        idle = {int(j) - len(self.x) for j in rows if j >= len(self.x)}  # heads the optimum does without
        used = [h for h in range(len(rates)) if h not in idle]
        if len(lags) != len(used):
            return None
        with mp.workdps(_DIGITS + 8 * len(rates)):
            points = [mpf(int(self.lags[j])) if self.encoding == "lin" else mp.log(int(self.lags[j])) for j in lags]
            system = mp.matrix([[mp.exp(-mpf(float(rates[h])) * x) for h in used] for x in points])
            try:
                found = mp.lu_solve(system, mp.matrix([mpf(float(self.wanted[j, kernel])) for j in lags]))
            except ZeroDivisionError:
                return None
            c = np.zeros(len(rates))
            c[used] = [float(v) for v in found]
        return c


def _apart(rates) -> np.ndarray:
    """The rates in increasing order, none of them twice."""
    ordered = np.sort(rates)
    for i in range(1, len(ordered)):
        ordered[i] = max(ordered[i], ordered[i - 1] * (1 + 1e-6))
    return ordered


def _least_absolute(columns: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """a with the least sum of |wanted - columns a|, from the dual programme; zero if it fails."""
    found = _from_dual(columns, wanted)
    return np.zeros(columns.shape[1]) if found is None else found


def fit(kernels: np.ndarray, importance, heads: int, encoding: str, *, caution: float = 1.0) -> tuple[np.ndarray, str]:
    """The rates with the least sum of kernel errors and rounding that the search finds, and how it found them."""
    problem = _Kernels(kernels, importance, encoding, caution)
    tried = {}
    begin = starts(problem.length, heads, encoding)
    if encoding == "lin":
        begin |= _read_off(kernels, heads)
    for name, rates in begin.items():
        tried[name] = (float(np.square(problem.project(np.log(rates))[0]).sum()), _apart(rates))
        tried[f"variable projection, {name}"] = problem.search(rates)
    ranked = sorted(tried, key=lambda name: tried[name][0])[:4]
    best = min(((problem.solve(tried[name][1])[0], tried[name][1], name) for name in ranked), key=lambda t: t[0])
    for _ in range(3):  # least squares with the weights that make it least absolute values
        value, rates, name = best
        left = np.abs(problem.wanted - problem.columns(rates) @ problem.solve(rates)[1].T) @ problem.importance
        problem.weights = 1 / np.sqrt(np.maximum(left, 1e-3 * max(float(left.mean()), 1e-300)))
        problem.weights /= problem.weights.mean()
        moved = problem.search(rates)[1]
        again = problem.solve(moved)[0]
        if again >= value:
            break
        best = (again, moved, name if name.endswith("reweighted") else f"{name}, reweighted")
    return best[1], best[2]


def coefficients(kernels: np.ndarray, importance, rates: np.ndarray, encoding: str,
                 caution: float = 1.0) -> list[tuple[np.ndarray, ...]]:  # fmt: skip
    """For each kernel one or two candidates for the coefficients at the rates as they are stored, floats."""
    problem = _Kernels(kernels, importance, encoding, caution)
    _, found, met = problem.solve(rates)
    made = []
    for i in range(len(kernels)):
        sharp = problem.sharpened(rates, met[i], i)
        made.append((found[i],) if sharp is None else (sharp, found[i]))
    return made
