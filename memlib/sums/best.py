"""The best sum that can be found, with free rates, and with a budget for its weight."""

import math
from dataclasses import dataclass

import numpy as np
from mpmath import mp, mpf
from scipy.optimize import least_squares, linprog, minimize, nnls
from scipy.signal import lfilter

from memlib import checks
from memlib.sums.certificates import interpolating_sum
from memlib.sums.hankel import SLOWEST, STEEPEST, real_rates, shift_invariant_bases
from memlib.sums.kernel_sum import NORMS, KernelSum, _as_float, _encoding, _first_lag, _target
from memlib.sums.price import _budget


@dataclass(frozen=True)
class BestSum(KernelSum):
    """A `KernelSum` found by `best_sum` (equation x:best).

    ``error`` is its error in ``norm`` on the first ``length`` lags, evaluated in extended precision; ``evaluations``
    counts those of the search, and ``came_from`` says how the winner was found.
    """

    norm: str = "l2"
    error: float = math.nan
    length: int = 0
    evaluations: int = 0
    came_from: str = ""


class _Problem:
    """A kernel to be met on a window, and the projections, programmes and exact solutions that belong to it."""

    def __init__(self, target, heads, encoding, norm, residual, length):
        self.encoding, self.norm, self.residual = encoding, norm, residual
        if isinstance(target, int):
            self.lag = target
            self.length = length or 4 * (target + (heads or 0)) + 64
            if self.length <= target:
                raise ValueError(f"length must exceed the lag {target}, got {length}")
            self.rho = np.zeros(self.length)
            self.rho[target] = 1.0
        else:
            if length is not None:
                raise ValueError("length belongs to a lag; an array of kernel values brings its own window")
            self.lag, self.rho, self.length = None, target, len(target)
        self.first = max(_first_lag(encoding), 1 if residual else 0)
        self.fixed = 0.0 if residual else float((np.abs(self.rho[: self.first]) ** self.power).sum())
        self.lags = np.arange(self.first, self.length)
        self.wanted = self.rho[self.first :]
        self.evaluations = 0

    @property
    def power(self):
        return 1 if self.norm == "l1" else 2

    def columns(self, rates) -> np.ndarray:
        x = self.lags if self.encoding == "lin" else np.log(self.lags)
        return np.exp(-np.outer(x, rates))

    def basis(self, rates) -> np.ndarray:
        """An orthonormal basis of the span of the heads on the window.

        lin: from the Takenaka-Malmquist functions, a cascade of all-pass filters, which stay independent also when
        rates meet. log: singular vectors, without those below rounding.
        """
        if self.encoding == "lin":
            signal = np.eye(1, self.length)[0]
            made = []
            for r in np.exp(-np.asarray(rates)):
                made.append(lfilter([math.sqrt(max(1 - r * r, 1e-300))], [1.0, -r], signal))
                signal = lfilter([-r, 1.0], [1.0, -r], signal)
            a = np.array(made).T[self.first :]
        else:
            a = self.columns(rates)
        a = a / np.maximum(np.linalg.norm(a, axis=0), 1e-300)
        u, size, _ = np.linalg.svd(a, full_matrices=False)
        return u[:, size > 1e-12 * size[0]]

    def remainder(self, theta) -> np.ndarray:
        """What least squares leaves at the rates exp(theta): the function that variable projection makes small."""
        self.evaluations += 1
        q = self.basis(np.exp(theta))
        rest = self.wanted - q @ (q.T @ self.wanted)
        return rest - q @ (q.T @ rest)

    def l1_value(self, theta) -> float:
        """The least l1 error at the rates exp(theta), by a linear programme in an orthonormal basis."""
        self.evaluations += 1
        q = self.basis(np.exp(np.clip(theta, -12, 4)))
        a = _least_absolute(q, self.wanted)
        return math.inf if a is None else float(np.abs(self.wanted - q @ a).sum())

    def solve(self, rates):
        """Coefficients at given rates, in extended precision: least squares, or least absolute values."""
        rates = _apart(rates)
        with mp.workdps(60 + 14 * len(rates)):
            q, r = _gram_schmidt(self.encoding, rates, self.lags)
            if self.norm == "l2":
                a = [mp.fdot(column, map(mpf, self.wanted.tolist())) for column in q]
            else:
                found = _least_absolute(np.array([[float(x) for x in column] for column in q]).T, self.wanted)
                a = [mpf(float(x)) for x in (np.zeros(len(rates)) if found is None else found)]
            c = [mpf(0)] * len(a)
            for i in reversed(range(len(a))):
                if r[i][i]:
                    c[i] = (a[i] - mp.fsum(r[i][k] * c[k] for k in range(i + 1, len(a)))) / r[i][i]
            return rates, c

    def finish(self, rates, coefficients, came_from) -> BestSum:
        """The sum with its residual and its error in extended precision: nothing is believed of double precision."""
        plain = KernelSum(self.encoding, tuple(rates), tuple(coefficients))
        with mp.workprec(plain._bits() + 20):
            residual = mpf(0)
            if self.residual:
                at_zero = plain._exact(0) if self.encoding == "lin" else mpf(0)
                residual = mpf(float(self.rho[0])) - at_zero
            total = mpf(self.fixed)
            for s, wanted in zip(self.lags.tolist(), self.wanted.tolist(), strict=True):
                total += abs(mpf(wanted) - plain._exact(s)) ** self.power
            error = _as_float(total if self.power == 1 else mp.sqrt(total))
            return BestSum(self.encoding, plain.rates, plain.coefficients, residual, self.norm, error, self.length,
                           self.evaluations, came_from)  # fmt: skip


def _apart(rates) -> list[float]:
    """The rates in increasing order, with those that (almost) coincide moved apart by one part in a million."""
    ordered = sorted(float(p) for p in rates)
    for i in range(1, len(ordered)):
        ordered[i] = max(ordered[i], ordered[i - 1] * (1 + 1e-6))
    return ordered


def _gram_schmidt(encoding, rates, lags):
    """Orthonormal columns and the triangle that makes them of the heads' kernels, at the precision in force."""
    points = [mpf(int(s)) if encoding == "lin" else mp.log(int(s)) for s in lags]
    columns, triangle = [], []
    for h, p in enumerate(rates):
        column = [mp.exp(-mpf(p) * x) for x in points]
        triangle.append([mpf(0)] * len(rates))
        for i, other in enumerate(columns):
            triangle[i][h] = mp.fdot(other, column)
            column = [x - triangle[i][h] * y for x, y in zip(column, other, strict=True)]
        size = mp.sqrt(mp.fdot(column, column))
        if h >= len(points):  # more heads than lags: this one adds nothing
            columns.append([mpf(0)] * len(points))
            continue
        triangle[h][h] = size
        columns.append([x / size for x in column])
    return columns, triangle


def _least_absolute(columns, wanted):
    """a with the least sum of |wanted - columns a| (None if the programme fails).

    Solved in its dual form, max <wanted, y> subject to |y| <= 1, y orthogonal to the columns: few rows, simple bounds.
    """
    done = linprog(-wanted, A_eq=columns.T, b_eq=np.zeros(columns.shape[1]), bounds=(-1, 1), method="highs")
    return -done.eqlin.marginals if done.status == 0 else None


def starting_rates(target, heads: int, encoding: str, residual: bool = False) -> list[np.ndarray]:
    r"""The rates from which `best_sum` starts, each an array of $H$ numbers $p_h>0$.

    Multiples of a step, as in Lemma x:lem-bump and Theorems x:thm-lin, x:thm-log; geometric progressions; and rates
    close together, where a sum imitates $s^{H-1}e^{-ps}$. For lin heads and a kernel given by its values also what
    ESPRIT reads off its Hankel matrix (`shift_invariant_bases`), where that is larger than the number of heads; for log
    heads also steeper progressions, and some that begin with the slope of the kernel's tail.
    """
    _encoding(encoding)
    target = _target(target, encoding)
    checks.integer("heads", heads, 1)
    last = target if isinstance(target, int) else len(target) - 1
    scale = 1.0 / (last + 1) if encoding == "lin" else 1.0 / math.log(last + 2)
    h = np.arange(1, heads + 1)
    starts = [step * h for step in (scale, 0.3, 1.0)]
    starts += [np.geomspace(low * scale, high, heads) for low, high in ((0.1, 1.0), (0.5, 2.0), (1.0, 6.0))]
    middle = heads / max(last, 1) if encoding == "lin" else 1.0 + heads * scale
    starts.append(middle * np.linspace(0.8, 1.25, heads) if heads > 1 else np.array([middle]))
    if encoding == "lin" and not isinstance(target, int) and _esprit_applies(target, heads, residual):
        starts.append(real_rates(shift_invariant_bases(target, heads, residual), heads, apart=0.05))
    if encoding == "log" and not isinstance(target, int):
        starts += [np.geomspace(low, high, heads) for low, high in ((1.1, 12.0), (1.5, 30.0))]
        starts += [_tail_slope(target) + step * (h - 1) for step in (0.5, 2.0)]
    return starts


def _tail_slope(kernel) -> float:
    """The p of c s^-p through the kernel's values at its last lag and half way there, within limits; 1.5 if neither."""
    last = len(kernel) - 1
    ends = np.abs([kernel[last // 2], kernel[last]])
    if last < 4 or not ends.all():
        return 1.5
    return float(np.clip(-np.log(ends[1] / ends[0]) / math.log(last / (last // 2)), 0.3, 6.0))


def _esprit_applies(target, heads, residual) -> bool:
    """Whether the Hankel matrix of a kernel is larger than the number of heads, and not zero."""
    return 2 * heads < len(target) - (2 if residual else 1) and bool(np.any(target[1:]))


def best_sum(target, heads: int | None, encoding: str, norm: str = "l2", max_weight: float | None = None,
             residual: bool = False, *, length: int | None = None, polish: int = 40) -> BestSum:  # fmt: skip
    r"""The best sum of $H$ heads with free real rates that the search finds (equation x:best).

    ``target``: a lag $T$, which means $\delta_T$ on the lags $0..N-1$ with $N=$ ``length``, by default $4(T+H)+64$, or
    an array of kernel values on lags $0..N-1$. ``norm``: ``"l1"`` or ``"l2"``, on that window. ``residual``: lag 0 is
    free.

    l2: variable projection from all `starting_rates`, with stable bases. l1: linear programmes in an orthonormal basis
    at the rates so found and at the starts, then ``polish`` steps for each head of a simplex search over the rates; for
    a kernel given by its values also at rates from robust fits of rates and weights together and from reweighted
    variable projection. The zero sum and (for a lag) interpolating sums or (for lin heads and a kernel given by its
    values) the sum of ESPRIT are candidates too. Every candidate is re-evaluated in extended precision, and the best is
    returned: never worse than any start, and never a zero that is only rounding.

    With ``max_weight``, $\sum_h|c_h|\le$ ``max_weight``. For given rates this is a convex problem; with ``heads=None``
    (any number of heads) it is solved on a dense grid of rates, refined where the solution lives: the trade-off of
    Theorem x:thm-price. With a number of heads the same is done at the best rates found.
    """
    _encoding(encoding)
    target = _target(target, encoding)
    if norm not in NORMS:
        raise ValueError(f"unknown norm {norm!r}; allowed: {', '.join(NORMS)}")
    if heads is not None:
        checks.integer("heads", heads, 1)
    elif max_weight is None:
        raise ValueError("heads may be None (any number) only together with max_weight")
    if max_weight is not None:
        _budget(max_weight)
    if length is not None:
        checks.integer("length", length, 2)
    checks.integer("polish", polish, 0)
    problem = _Problem(target, heads, encoding, norm, residual, length)
    budget = None if max_weight is None else min(float(max_weight), MOST_WEIGHT)
    if heads is None:
        return _best_on_grid(problem, budget)
    found = _search_rates(problem, starting_rates(target, heads, encoding, residual))
    if max_weight is not None:
        return _best_within(problem, found, heads, budget, polish)
    candidates = [problem.finish(found[0][1], [0.0] * heads, "zero sum")]
    chosen = found[:2] if norm == "l2" else _polished(problem, found, polish)
    if not isinstance(target, int) and encoding == "lin" and _esprit_applies(target, heads, residual):
        chosen.append((math.inf, real_rates(shift_invariant_bases(target, heads, residual), heads), "ESPRIT"))
    candidates += [problem.finish(*problem.solve(rates), name) for _, rates, name in chosen]
    if isinstance(target, int):
        candidates += _interpolating_candidates(problem, heads)
    return _counted(min(candidates, key=lambda c: c.error), problem.evaluations)


def _counted(best: BestSum, evaluations: int) -> BestSum:
    object.__setattr__(best, "evaluations", evaluations)
    return best


def _search_rates(problem, starts):
    """(l2 error, rates, name) for every start and for where variable projection led from it, best first."""
    low, high = math.log(SLOWEST), math.log(STEEPEST)
    found = []
    for i, rates in enumerate(starts):
        theta = np.clip(np.log(rates), low + 1e-6, high - 1e-6)
        found.append((float(np.linalg.norm(problem.remainder(theta))), np.exp(theta), f"start {i}"))
        done = least_squares(problem.remainder, theta, bounds=(low, high), xtol=1e-12, ftol=1e-14, gtol=1e-14,
                             max_nfev=60)  # fmt: skip
        found.append((float(np.linalg.norm(done.fun)), np.exp(done.x), f"variable projection from start {i}"))
    return sorted(found, key=lambda entry: entry[0])


def _polished(problem, found, polish):
    """The most promising rates for the l1 norm, improved by a simplex search over them."""
    if problem.lag is None and polish:
        found = [*found, *_joint_rates(problem, [p for _, p, name in found if name.startswith("start")])]
    tried = sorted(((problem.l1_value(np.log(p)), p, name) for _, p, name in found), key=lambda entry: entry[0])
    if polish and problem.lag is not None:
        tried.insert(0, _simplex(problem, tried[0], polish))
    elif polish:  # a kernel with a tail: valleys differ little, so that several are searched
        tried += [_reweighted(problem, entry) for entry in _distinct(tried)[:VALLEYS]]
        tried.sort(key=lambda entry: entry[0])
        tried += [_simplex(problem, entry, polish) for entry in _distinct(tried)[:VALLEYS]]
        tried.append(_simplex(problem, min(tried, key=lambda entry: entry[0]), polish))
        tried.sort(key=lambda entry: entry[0])
    return tried[: 3 if problem.lag is not None else 5]


def _joint_rates(problem, starts):
    """Rates from fits of rates and weights together, with a loss that is nearer to the l1 norm than squares are."""
    done = (_joint_fit(problem, rates, "soft_l1", 40) for rates in starts)
    return [(math.inf, np.exp(z[: len(z) // 2]), f"joint fit from start {i}") for i, z in enumerate(done)]


def _joint_fit(problem, rates, loss, most):
    """Logarithms of the rates, and weights, by scipy's least squares over both, from the least-squares weights."""
    x = problem.lags if problem.encoding == "lin" else np.log(problem.lags)
    heads, wanted = len(rates), problem.wanted
    low, high = math.log(SLOWEST), math.log(STEEPEST)

    def rest(z):
        problem.evaluations += 1
        return np.exp(-np.outer(x, np.exp(z[:heads]))) @ z[heads:] - wanted

    def jacobian(z):
        problem.evaluations += 1
        rates = np.exp(z[:heads])
        columns = np.exp(-np.outer(x, rates))
        return np.hstack([-np.outer(x, rates * z[heads:]) * columns, columns])

    theta = np.clip(np.log(np.asarray(rates, dtype=float)), low + 1e-6, high - 1e-6)
    weights = np.linalg.lstsq(problem.columns(np.exp(theta)), wanted, rcond=1e-12)[0]
    bounds = (np.repeat([low, -np.inf], heads), np.repeat([high, np.inf], heads))
    return least_squares(rest, np.append(theta, weights), jacobian, bounds=bounds, x_scale="jac", loss=loss,
                         f_scale=1e-3 * (float(np.abs(wanted).max()) or 1.0), xtol=1e-12, ftol=1e-14, gtol=1e-14,
                         max_nfev=most).x  # fmt: skip


VALLEYS = 2  # starts of simplex searches for a kernel with a tail


def _reweighted(problem, entry):
    """Variable projection with weights that turn squares into absolute values, renewed three times."""
    best = entry
    for _ in range(3):
        q = problem.basis(best[1])
        a = _least_absolute(q, problem.wanted)
        if a is None:
            break
        left = np.abs(problem.wanted - q @ a)
        weights = 1 / np.sqrt(np.maximum(left, 1e-3 * max(float(left.mean()), 1e-300)))
        weights /= weights.mean()

        def rest(theta, weights=weights):
            problem.evaluations += 1
            b, _ = np.linalg.qr(weights[:, None] * problem.basis(np.exp(theta)))
            wanted = weights * problem.wanted
            return wanted - b @ (b.T @ wanted)

        low, high = math.log(SLOWEST), math.log(STEEPEST)
        begin = np.clip(np.log(best[1]), low + 1e-6, high - 1e-6)
        done = least_squares(rest, begin, bounds=(low, high), xtol=1e-12, ftol=1e-14, gtol=1e-14, max_nfev=40)
        value = problem.l1_value(done.x)
        if not value < best[0]:
            break
        best = (value, np.exp(done.x), best[2] if best[2].startswith("reweighted") else f"reweighted {best[2]}")
    return best


def _simplex(problem, entry, polish):
    """Where a simplex search over the rates leads from an (l1 error, rates, name), as such a triple."""
    _, rates, name = entry
    done = minimize(problem.l1_value, np.log(rates), method="Nelder-Mead",
                    options={"maxfev": polish * len(rates), "xatol": 1e-6, "fatol": 1e-12})  # fmt: skip
    name = name if name.startswith("simplex") else f"simplex search from {name}"
    return float(done.fun), np.exp(np.clip(done.x, -12, 4)), name


def _distinct(tried):
    """Those entries of a sorted list whose error is not within 2 % of an entry before."""
    kept = []
    for entry in tried:
        if not kept or entry[0] > 1.02 * kept[-1][0]:
            kept.append(entry)
    return kept


def _interpolating_candidates(problem, heads):
    """Interpolating sums with steep rates, filled up with heads of weight 0, if there are heads enough."""
    lag, made = problem.lag, []
    free = problem.residual or problem.encoding == "log"
    if heads < (lag if free else lag + 1) or lag < (1 if free else 0):
        return made
    steps = (4.0, 16.0) if problem.encoding == "lin" else (4.0 * (lag + 1), 16.0 * (lag + 1))
    for alpha in steps:
        sum_ = interpolating_sum(lag, problem.encoding, alpha, residual=free)
        spare = heads - sum_.heads
        rates = [*sum_.rates, *(float(sum_.rates[-1]) + alpha * (i + 1) for i in range(spare))]
        made.append(
            problem.finish(rates, [*sum_.coefficients, *[0.0] * spare], f"interpolating sum, alpha = {alpha:g}")
        )
    return made


# ---------------------------------------------------------------------------------------- the best sum within a budget


LADDER = (1.0, 0.5, 0.2, 0.1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6)  # shares of a budget tried when double precision fails
MOST_WEIGHT = 1e13  # no larger budget is of use in double precision


def _within_budget(columns, wanted, weight, norm):
    """c with sum |c| <= weight and least distance of columns c from wanted: a linear or quadratic programme.

    Budgets so large that double precision cannot resolve the programme are used in part: never worse than 0.
    """
    power = 1 if norm == "l1" else 2
    best, best_error = np.zeros(columns.shape[1]), float((np.abs(wanted) ** power).sum())
    for share in LADDER if weight > 0 else ():
        c = _programme(columns, wanted, share * weight, norm)
        error = math.inf if c is None else float((np.abs(wanted - columns @ c) ** power).sum())
        better = error < best_error
        if better:
            best, best_error = c, error
        if c is not None and (weight < 1e6 or (better and norm == "l1")):  # a programme that ends is solved
            break
    return best


def _programme(columns, wanted, weight, norm):
    rows, size = columns.shape
    both = weight * np.hstack([columns, -columns])
    if norm == "l1":
        cost = np.concatenate([np.zeros(2 * size), np.ones(2 * rows)])
        equal = np.hstack([both, np.eye(rows), -np.eye(rows)])
        budget = np.concatenate([np.ones(2 * size), np.zeros(2 * rows)])[None]
        done = linprog(cost, A_eq=equal, b_eq=wanted, A_ub=budget, b_ub=[1.0], bounds=(0, None), method="highs")
        if done.status != 0:
            return None
        share = done.x[: 2 * size]
    else:  # non-negative shares that add up to 1, one of them of the zero kernel; the sum enforced by a heavy row
        heavy = 1e3 * weight
        system = np.vstack([np.hstack([both, np.zeros((rows, 1))]), np.full((1, 2 * size + 1), heavy)])
        try:
            share = nnls(system, np.append(wanted, heavy), maxiter=50 * (2 * size + 1))[0][:-1]
        except RuntimeError:  # did not end
            return None
    c = weight * (share[:size] - share[size:])
    total = np.abs(c).sum()
    return c * min(1.0, weight / total) if total else c


def _best_on_grid(problem, weight) -> BestSum:
    """The programme on a dense grid of rates, twice refined around the rates it uses; the best of the three rounds."""
    coarse = np.geomspace(1e-3, 40.0, 60)
    grid = np.geomspace(1e-3, 40.0, 200)
    candidates = [problem.finish([1.0], [0.0], "zero sum")]
    for _ in range(3):
        c = _within_budget(problem.columns(grid), problem.wanted, weight, problem.norm)
        problem.evaluations += 1
        used = np.flatnonzero(c)
        if not len(used):
            break
        candidates.append(problem.finish(grid[used], c[used], "programme on a grid of rates"))
        ratio = (grid[1:] / grid[:-1]).max() ** 0.25
        near = np.concatenate([grid[used] * ratio**k for k in (-2, -1, 0, 1, 2)])
        grid = np.unique(np.concatenate([near, coarse]))
        grid = grid[np.concatenate([[True], np.diff(np.log(grid)) > 1e-9])]
    return _counted(min(candidates, key=lambda s: s.error), problem.evaluations)


def _best_within(problem, found, heads, weight, polish) -> BestSum:
    """The best of H heads within a budget: starts and free optima, the heaviest of the grid, and a simplex search."""

    def attempt(theta):
        problem.evaluations += 1
        rates = np.exp(np.clip(theta, -12, 4))
        columns = problem.columns(rates)
        c = _within_budget(columns, problem.wanted, weight, problem.norm)
        return float((np.abs(problem.wanted - columns @ c) ** problem.power).sum()), rates, c

    grid = _best_on_grid(problem, weight)
    heavy = np.argsort([-abs(float(c)) for c in grid.coefficients])[:heads]
    chosen = np.array([float(grid.rates[i]) for i in heavy])
    chosen = np.sort(np.concatenate([chosen, np.geomspace(0.05, 5.0, heads - len(chosen))]))
    tried = [attempt(np.log(p)) for p in [chosen, *(p for _, p, _ in found)]]
    best = min(tried, key=lambda entry: entry[0])
    if polish:
        done = minimize(lambda theta: attempt(theta)[0], np.log(best[1]), method="Nelder-Mead",
                        options={"maxfev": polish * heads, "xatol": 1e-6, "fatol": 1e-12})  # fmt: skip
        best = min(best, attempt(done.x), key=lambda entry: entry[0])
    candidates = [problem.finish(best[1], best[2], "programme at the best rates found")]
    candidates.append(problem.finish(best[1], np.zeros(heads), "zero sum"))
    return _counted(min(candidates, key=lambda s: s.error), problem.evaluations)
