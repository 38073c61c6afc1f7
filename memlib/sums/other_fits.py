r"""Other ways to fit a sum of heads: what a user might pick instead of `best_sum` (chapter Essentially sparse memory).

`esprit` reads the rates off the Hankel matrix; `general_fit` gives rates and weights together to scipy's least squares.
Both return what `best_sum` returns, evaluated again in the same extended precision.
"""

import math

import numpy as np

from memlib import checks
from memlib.sums.best import BestSum, _counted, _joint_fit, _Problem, starting_rates
from memlib.sums.hankel import SLOWEST, STEEPEST, real_rates, shift_invariant_bases
from memlib.sums.kernel_sum import NORMS, _encoding, _positive, _target
from memlib.sums.price import ComplexSum


def _kernel(kernel, encoding: str, norm: str) -> np.ndarray:
    _encoding(encoding)
    if norm not in NORMS:
        raise ValueError(f"unknown norm {norm!r}; allowed: {', '.join(NORMS)}")
    if isinstance(kernel, int | np.integer | bool):
        raise ValueError(f"kernel must be an array of values on lags 0..N-1, got {kernel!r}")
    return _target(kernel, encoding)


def esprit(
    kernel, heads: int, norm: str = "l2", residual: bool = False, *, rates: str = "real"
) -> BestSum | ComplexSum:
    r"""A sum of $H$ exponentials whose rates come from the Hankel matrix (ESPRIT, `shift_invariant_bases`).

    ``rates="real"``: the rates a lin head can have. Complex, negative and unstable bases are replaced by real ones as
    `real_rates` says, and the weights are solved for at these rates: least squares, or least absolute values if
    ``norm="l1"``. ``came_from`` tells how many bases had to be replaced.

    ``rates="complex"``: the bases as they are found, with weights by least squares in double precision, as a
    `ComplexSum`: what a recurrence with $H$ states can do and heads cannot. Its ``error`` is that in ``norm`` on the
    window; the lag 0 that a ``residual`` takes care of is left out.
    """
    kernel = _kernel(kernel, "lin", norm)
    if rates not in ("real", "complex"):
        raise ValueError(f"unknown rates {rates!r}; allowed: real, complex")
    bases = shift_invariant_bases(kernel, heads, residual)
    if rates == "complex":
        return _complex_sum(kernel, bases, norm, residual)
    kept = int(((bases.imag == 0) & (bases.real > math.exp(-STEEPEST)) & (bases.real < math.exp(-SLOWEST))).sum())
    problem = _Problem(kernel, heads, "lin", norm, residual, None)
    name = "ESPRIT" if kept == heads else f"ESPRIT, {heads - kept} of {heads} bases replaced"
    return problem.finish(*problem.solve(real_rates(bases, heads)), name)


def _complex_sum(kernel, bases, norm, residual) -> ComplexSum:
    first = 1 if residual else 0
    columns = bases ** np.arange(first, len(kernel), dtype=float)[:, None]
    weights = np.linalg.lstsq(columns, kernel[first:].astype(complex), rcond=None)[0]
    rest = kernel[first:] - (columns @ weights).real
    error = math.fsum(np.abs(rest)) if norm == "l1" else math.sqrt(math.fsum(rest**2))
    return ComplexSum(bases, weights, error, float(np.abs(weights).sum()))


def general_fit(kernel, heads: int, norm: str = "l2", starts=None, evaluations: int | None = None, *,
                encoding: str = "lin", residual: bool = False) -> BestSum:  # fmt: skip
    r"""Rates and weights fitted together by `scipy.optimize.least_squares`, from several starts.

    ``starts`` are rates, by default the `starting_rates`; the weights start at the least-squares solution. Each start
    gets the same share of the ``evaluations`` (of the function and of its Jacobian, which is exact; by default 400 for
    each head, about what `best_sum` uses), and rates have the limits of `best_sum`. For ``norm="l1"`` half of the
    evaluations go to the loss ``soft_l1``, which is nearer to that norm. All that is found is evaluated in extended
    precision, and the best is returned.
    """
    kernel = _kernel(kernel, encoding, norm)
    checks.integer("heads", heads, 1)
    starts = starting_rates(kernel, heads, encoding, residual) if starts is None else list(starts)
    if not starts:
        raise ValueError("starts must hold at least one array of rates")
    for rates in starts:
        if len(rates) != heads:
            raise ValueError(f"a start must hold {heads} rates, one for each head, got {len(rates)}")
        for rate in rates:
            _positive("a rate", rate)
    evaluations = 400 * heads if evaluations is None else checks.integer("evaluations", evaluations, 1)
    problem = _Problem(kernel, heads, encoding, norm, residual, None)
    losses = ("linear",) if norm == "l2" else ("linear", "soft_l1")
    most = max(1, evaluations // (2 * len(starts) * len(losses)))
    found = []
    for i, rates in enumerate(starts):
        for loss in losses:
            z = _joint_fit(problem, rates, loss, most)
            name = f"least squares from start {i}" if loss == "linear" else f"soft l1 from start {i}"
            rest = problem.wanted - problem.columns(np.exp(z[:heads])) @ z[heads:]
            found.append((float(np.linalg.norm(rest, problem.power)), z, name))
    tried = sorted(found, key=lambda entry: entry[0])[:3]
    candidates = [problem.finish(np.exp(z[:heads]), z[heads:].tolist(), name) for _, z, name in tried]
    candidates.append(problem.finish(starts[0], [0.0] * heads, "zero sum"))
    return _counted(min(candidates, key=lambda c: c.error), problem.evaluations)
