r"""Exponential and power sums: what $H$ heads without dot product can make of the past (chapter Fixed sparse memory).

A layer of $H$ DP-free heads convolves the past with $\varphi(s)=\sum_hc_he^{-p_hs}$ (``lin``, lags $s\ge0$) or
$\varphi(s)=\sum_hc_hs^{-p_h}$ (``log``, lags $s\ge1$); the residual connection adds a free multiple of $\delta_0$.
How near such a sum comes to a wanted kernel, with how many heads and with how large coefficients, is the subject of
this module: `interpolating_sum` (Theorems x:thm-lin, x:thm-log, upper halves), `certificate` and `certificate_log`
(lower halves), `jackson_sum` (Lemma x:lem-bump), `best_sum` (numerical optimum), `weight_floor` (Theorem x:thm-price).
For kernels with tails (chapter Essentially sparse memory): `hankel_floor` (Theorem e:thm-hankel), `quadrature_sum`
(Proposition e:prop-lin-heavy), and as rivals of `best_sum` the fits `esprit` and `general_fit`.

Good sums of this kind have coefficients far beyond double precision that cancel almost completely. So coefficients
may be mpmath numbers, values are computed with as many digits as the cancellation needs, and polynomials of high
degree are kept in a Chebyshev basis.
"""

from memlib.sums.best import BestSum, best_sum, starting_rates
from memlib.sums.certificates import certificate, certificate_log, interpolating_sum, interpolation_error_bound
from memlib.sums.hankel import hankel_floor, hankel_values, real_rates, shift_invariant_bases
from memlib.sums.jackson import JacksonSum, bump, jackson_sum, smooth_sum
from memlib.sums.kernel_sum import KernelSum
from memlib.sums.other_fits import esprit, general_fit
from memlib.sums.price import (
    ComplexSum,
    PrecisionLimit,
    complex_sum,
    error_floor,
    interpolation_weight,
    precision_limit,
    price_certificate,
    weight_floor,
)
from memlib.sums.quadrature import QuadratureSum, quadrature_sum

__all__ = [
    "BestSum",
    "ComplexSum",
    "JacksonSum",
    "KernelSum",
    "PrecisionLimit",
    "QuadratureSum",
    "best_sum",
    "bump",
    "certificate",
    "certificate_log",
    "complex_sum",
    "error_floor",
    "esprit",
    "general_fit",
    "hankel_floor",
    "hankel_values",
    "interpolating_sum",
    "interpolation_error_bound",
    "interpolation_weight",
    "jackson_sum",
    "precision_limit",
    "price_certificate",
    "quadrature_sum",
    "real_rates",
    "shift_invariant_bases",
    "smooth_sum",
    "starting_rates",
    "weight_floor",
]
