"""How many heads a lag needs: sums that interpolate, and certificates that fewer heads cannot do it."""

import math

import numpy as np
from mpmath import mp, mpf

from memlib import checks
from memlib.sums.kernel_sum import KernelSum, _encoding, _numbers, _positive, _zeros


def interpolating_sum(lag: int, encoding: str, alpha: float, residual: bool = True) -> KernelSum:
    r"""The sum that equals $\delta_T$ on the lags up to $T$ (Theorems x:thm-lin, x:thm-log, x:thm-layer, upper halves).

    $p(u)=\frac u{u_T}\prod_j\frac{u-u_j}{u_T-u_j}$ with $u=e^{-\alpha s}$, $0\le j<T$ (``lin``, $T+1$ heads), or
    $u=s^{-\alpha}$, $1\le j<T$ (``log``, $T$ heads); rates $\alpha,2\alpha,\dots$. With ``residual`` the lin node $j=0$
    is dropped, because the residual connection can put right what stands at lag 0: exactly $T$ heads for both
    encodings. As $\alpha\to\infty$ the error tends to 0; the coefficients explode (Theorem x:thm-price), and are
    mpmath numbers, correct to 30 digits after all cancellation.
    """
    _encoding(encoding)
    drop = residual or encoding == "log"
    checks.integer("lag", lag, 1 if drop else 0)
    _positive("alpha", alpha)
    if encoding == "log" and alpha <= 1:
        raise ValueError(f"s^-alpha is summable over the infinite past only for alpha > 1, got {alpha}")
    nodes = range(1 if drop else 0, lag)
    steps = lag * (lag + 1) / 2 if encoding == "lin" else lag * math.log(lag + 1) * 1.5
    with mp.workprec(200 + int(1.45 * float(alpha) * steps) + 8 * lag):
        alpha = mpf(alpha)
        u = {j: mp.exp(-alpha * j) if encoding == "lin" else mp.exp(-alpha * mp.log(j)) for j in [*nodes, lag]}
        polynomial = [mpf(1)]  # in u, lowest power first
        for j in nodes:
            scale = u[lag] - u[j]
            polynomial = [
                (a - u[j] * b) / scale for a, b in zip([mpf(0), *polynomial], [*polynomial, mpf(0)], strict=True)
            ]
        coefficients = tuple(c / u[lag] for c in polynomial)
        rates = tuple(alpha * h for h in range(1, len(coefficients) + 1))
        at_zero = mp.fsum(coefficients) if encoding == "lin" and drop else mpf(0)
        return KernelSum(encoding, rates, coefficients, -at_zero)


def interpolation_error_bound(lag: int, alpha: float) -> float:
    r"""$\frac{e^{-\alpha}}{1-e^{-\alpha}}\prod_{i=1}^{T}(1-e^{-\alpha i})^{-1}$: bounds the error of the lin
    interpolating sum, with or without residual (Theorem x:thm-lin, equation x:tail)."""
    checks.integer("lag", lag, 0)
    _positive("alpha", alpha)
    product = math.prod(-math.expm1(-alpha * i) for i in range(1, lag + 1))
    return math.exp(-alpha) / -math.expm1(-alpha) / product


def certificate(lag: int, rates) -> np.ndarray:
    r"""$\zeta$ on lags $0..T+H$ that no sum with these lin rates can meet (Theorem x:thm-lin, equation x:certificate).

    $v(z)\propto\prod_h(z-r_h)$, $r_h=e^{-p_h}$, $\sum_jv_j^2=1$; $\zeta_s=\sum_jv_jv_{j+|s-T|}$. So $\zeta_T=1$,
    $|\zeta_s|\le1$, the support is $[T-H,T+H]$, and $\sum_s\zeta_sr_h^s=0$ for every $h$; hence
    $\lVert\delta_T-\varphi\rVert_1\ge\langle\zeta,\delta_T-\varphi\rangle=1$. Needs $H\le T$.

    The coefficients of $v$ alternate in sign, so no digit is lost: every $\zeta_s$ is correct to rounding.
    """
    rates = [float(_positive("a rate", p)) for p in rates]
    checks.integer("lag", lag, 1)
    if not 1 <= len(rates) <= lag:
        raise ValueError(f"a certificate exists for 1 to {lag} rates at lag {lag}, got {len(rates)}")
    return _autocorrelation(lag, np.exp(-np.array(rates)))


def _autocorrelation(lag: int, roots) -> np.ndarray:
    v = np.ones(1)
    for r in roots:
        v = np.append(v, 0.0) - float(r) * np.append(0.0, v)
        v /= np.linalg.norm(v)
    half = np.array([v[: len(v) - k] @ v[k:] for k in range(len(v))])
    zeta = np.zeros(lag + len(v))
    zeta[lag:] = half
    zeta[lag - len(v) + 1 : lag + 1] = half[::-1]
    zeta[lag] = 1.0
    return zeta


def certificate_log(lag: int, exponents, coefficients, digits: int = 60) -> np.ndarray:
    r"""$\zeta$ on lags $0..T+H$ that opposes this power sum: $\varphi(T)\sum_s\zeta_s\varphi(s)\le0$ (Theorem
    x:thm-log).

    $\varphi(s)=\int_0^\infty g(x)e^{-sx}dx$ with $g=\sum_hc_hx^{p_h-1}/\Gamma(p_h)$, which changes sign at most $H-1$
    times (Descartes), at $x_j$. With $r_j=e^{-x_j}$ both $v\propto\prod(z-r_j)$ and $v\propto(z-1)\prod(z-r_j)$ give
    $\int gP$ a definite sign, and the two signs are opposite; the one that opposes $\varphi(T)$ is taken. Since
    $\zeta_T=1$ and $|\zeta|\le1$, $|\varphi(T)|\le\sum_{s\ne T}|\varphi(s)|$. Needs $H\le T-1$.

    Sign changes are found in ``digits`` decimal digits.
    """
    rates = [mpf(_positive("an exponent", p)) for p in exponents]
    weights = [mpf(c) for c in _numbers("coefficients", coefficients)]
    checks.integer("lag", lag, 2)
    checks.integer("digits", digits, 15)
    if len(rates) != len(weights):
        raise ValueError(f"as many coefficients as exponents are wanted, got {len(weights)} for {len(rates)}")
    if not 1 <= len(rates) <= lag - 1:
        raise ValueError(f"a certificate exists for 1 to {lag - 1} exponents at lag {lag}, got {len(rates)}")
    zeta = np.zeros(lag + len(rates) + 1)
    with mp.workdps(digits):
        merged = {}
        for p, c in zip(rates, weights, strict=True):
            merged[p] = merged.get(p, mpf(0)) + c
        merged = {p: c for p, c in merged.items() if c}
        g = {p: c / mp.gamma(p) for p, c in merged.items()}
        roots = [mp.exp(-mp.exp(min(y, 10))) for y in _zeros(g.keys(), g.values())]  # beyond, r = 0 in any precision
        # Beyond its last sign change g has the sign of its term of largest exponent, and there, near r = 0, the sign of
        # P(r) = r^T v(r) v(1/r) is that of v(0): positive for an even number of roots, negative for an odd one.
        sign = mp.sign(g[max(g)]) * (-1) ** len(roots) if g else 0  # of the integral of g P with v = prod (z - r_j)
        value = mp.sign(mp.fsum(c * mp.power(lag, -p) for p, c in merged.items()))
        made = _autocorrelation(lag, [*roots, mpf(1)] if sign * value > 0 else roots)
    zeta[: len(made)] = made
    return zeta
