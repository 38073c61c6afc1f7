"""Kernels against closed forms, and the FFT path against softmax row by row."""

import math

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from memlib import encodings, kernels
from memlib.kernels import causal_convolution, head_kernel, lag_attention, normalise, toeplitz

ADDITIVE = ("lin", "log", "alibi", "kerple_log", "kerple_power", "t5")


def _values(seed, batch, heads, length, width=3):
    return torch.randn(batch, heads, length, width, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


# ----------------------------------------------------------------------------------------------- kernels of one head


def test_lin_and_log_kernels_by_hand():
    np.testing.assert_allclose(head_kernel("lin", math.log(2), 4), [0.5, 0.25, 0.125, 0.0625], rtol=1e-14)
    np.testing.assert_allclose(head_kernel("log", 2, 4), np.array([0, 1, 1 / 4, 1 / 9]) * 6 / math.pi**2, rtol=1e-14)
    np.testing.assert_allclose(head_kernel("none", 1.0, 4, "window"), [0.25] * 4)


@pytest.mark.parametrize(
    "encoding, slope", [("lin", 0.3), ("log", 3.0), ("alibi", 0.5), ("kerple_log", 4.0), ("kerple_power", 2.0)]
)
def test_kernel_sums_to_one_over_the_past(encoding, slope):
    assert head_kernel(encoding, slope, 200_000).sum() == pytest.approx(1, abs=1e-9)


@pytest.mark.parametrize("encoding", [n for n in encodings.names() if n != "learned"])
def test_window_kernel_is_what_the_last_position_sees(encoding):
    kernel = head_kernel(encoding, 1.3, 20, "window")
    np.testing.assert_allclose(
        kernel, head_kernel(encoding, 1.3, 20, "none") / head_kernel(encoding, 1.3, 20, "none").sum()
    )
    assert kernel.sum() == pytest.approx(1)


def test_rotary_kernel_is_rotary_attention_of_constant_tokens():
    rotary = encodings.make("rotary", d_head=32)
    q = torch.cat([torch.ones(20, 16), torch.zeros(20, 16)], 1).double()
    scores = rotary.rotate(q) @ rotary.rotate(q).T
    weights = torch.softmax(0.7 * scores[-1], -1).flip(0)
    np.testing.assert_allclose(head_kernel("rotary", 0.7, 20, "window"), weights, rtol=1e-12)


@given(st.floats(0.01, 5))
@settings(deadline=None)
def test_effective_length_of_lin(slope):
    length = int(60 / slope) + 2
    assert kernels.effective_length(head_kernel("lin", slope, length)) == pytest.approx(
        kernels.exact_effective_length("lin", slope), rel=1e-10
    )


@pytest.mark.parametrize("slope", [1.5, 2.0, 4.0])
def test_effective_length_of_log(slope):
    assert kernels.exact_effective_length("log", slope) == pytest.approx(
        float(mpmath.zeta(slope) ** 2 / mpmath.zeta(2 * slope)), rel=1e-12
    )


@given(st.floats(0.01, 3), st.floats(0.1, 0.99))
@settings(deadline=None)
def test_exact_window_of_lin(slope, mass):
    n = kernels.exact_window("lin", slope, mass)
    assert 1 - math.exp(-slope * n) >= mass * (1 - 1e-12)
    assert n == 1 or 1 - math.exp(-slope * (n - 1)) < mass * (1 + 1e-12)


@pytest.mark.parametrize("slope, mass", [(1.2, 0.5), (1.5, 0.9), (3.0, 0.99)])
def test_exact_window_of_log(slope, mass):
    n = kernels.exact_window("log", slope, mass)
    held = 1 - mpmath.zeta(slope, n + 1) / mpmath.zeta(slope)
    before = 1 - mpmath.zeta(slope, n) / mpmath.zeta(slope)
    assert before < mass <= held


def test_window_counts_lags():
    assert kernels.window(np.array([0.5, 0.3, 0.15, 0.05]), 0.9) == 3
    assert kernels.window(np.ones(10), 0.3) == 3


@pytest.mark.parametrize("encoding, slope", [("lin", 0.07), ("lin", 3.0), ("log", 2.5), ("log", 4.0)])
def test_window_agrees_with_the_infinite_past(encoding, slope):
    assert kernels.window(head_kernel(encoding, slope, 100_000), 0.9) == kernels.exact_window(encoding, slope, 0.9)


# ----------------------------------------------------------------------------------------------------- convolution


@given(st.integers(1, 300), st.integers(0, 2**16))
@settings(deadline=None, max_examples=60)
def test_causal_convolution_is_the_sum(length, seed):
    g = torch.Generator().manual_seed(seed)
    k, v = torch.randn(2, length, dtype=torch.float64, generator=g)
    torch.testing.assert_close(
        causal_convolution(k, v), torch.from_numpy(np.convolve(k, v)[:length]), rtol=0, atol=1e-11
    )


def test_toeplitz_by_hand():
    got = toeplitz(torch.tensor([[1.0, 2.0, 3.0]]))[0]
    assert got.tolist() == [[1, -math.inf, -math.inf], [2, 1, -math.inf], [3, 2, 1]]


def _reference(log_weights, values, normaliser, query):
    """Softmax attention as a user would write it: gather the bias of every lag, mask the future, normalise."""
    length = log_weights.shape[-1]
    lag = torch.arange(length)[:, None] - torch.arange(length)
    logits = torch.where(lag >= 0, log_weights[:, lag.clamp(min=0)], -math.inf)[None]
    if query is not None:
        logits = logits + query[..., None]
    if normaliser == "none":
        return logits.exp() @ values
    if normaliser == "sink":
        logits = torch.cat([logits, torch.zeros_like(logits[..., :1])], -1)
    empty = (logits == -math.inf).all(-1, keepdim=True)
    weights = torch.softmax(logits.masked_fill(empty, 0.0), -1).masked_fill(empty, 0.0)
    return weights[..., :length] @ values


def _differences(path, log_weights, values, normaliser="softmax", query=None):
    """Greatest differences of `lag_attention` from the reference, output and gradients, relative to the largest."""
    results = []
    for function in (lambda *a: lag_attention(*a, path=path), _reference):
        lw, v = log_weights.detach().clone().requires_grad_(), values.clone().requires_grad_()
        q = None if query is None else query.clone().requires_grad_()
        y = function(lw, v, normaliser, q)
        probe = torch.cos(torch.arange(y.numel(), dtype=torch.float64)).reshape(y.shape)
        (y * probe).sum().backward()
        results.append([y, v.grad, lw.grad, *([] if q is None else [q.grad])])
    pairs = [(a.detach(), b.detach()) for a, b in zip(*results, strict=True)]
    return [float((a - b).abs().max() / b.abs().max().clamp(min=1)) for a, b in pairs]


@pytest.mark.parametrize("path", ["fft", "direct", "auto"])
@pytest.mark.parametrize("length", range(1, 301))
def test_equals_softmax_at_every_length(length, path):
    """The encodings in turn, values and gradients, to 1e-10."""
    name = ADDITIVE[length % len(ADDITIVE)]
    lw = encodings.make(name, heads=2, generator=torch.Generator().manual_seed(length)).log_weights(length)
    assert max(_differences(path, lw, _values(length, 2, 2, length))) <= 1e-10


@given(
    path=st.sampled_from(["fft", "direct", "auto"]),
    length=st.integers(1, 300),
    slope=st.floats(0.01, 3),
    spread=st.floats(0, 5),
    seed=st.integers(0, 2**16),
    normaliser=st.sampled_from(["softmax", "sink", "none"]),
    with_query=st.booleans(),
)
@settings(deadline=None, max_examples=150)
def test_equals_softmax(path, length, slope, spread, seed, normaliser, with_query):
    g = torch.Generator().manual_seed(seed)
    lw = -slope * torch.arange(length) * torch.rand(2, 1, dtype=torch.float64, generator=g)
    lw = lw + spread * torch.rand(2, length, dtype=torch.float64, generator=g)
    query = torch.randn(2, 2, length, dtype=torch.float64, generator=g)
    query = query if with_query and normaliser != "softmax" else None
    assert max(_differences(path, lw, _values(seed, 2, 2, length), normaliser, query)) <= 1e-10


@pytest.mark.parametrize(
    "shape, spread, transformed",
    [
        ("ramp", 5, True),
        ("ramp", 15, True),
        ("ramp", 30, False),
        ("step", 5, True),
        ("step", 15, False),
        ("step", 30, False),
    ],
)
def test_guard_for_rising_biases(shape, spread, transformed, monkeypatch):
    """A bias that rises by ``spread``, steadily or after lag 200: the guard leaves the FFT where digits would be lost.

    On a ramp the first rows, computed directly in any case, take most of the loss: 15 still fits.
    """
    calls = []
    monkeypatch.setattr(kernels, "causal_convolution", lambda *a: calls.append(1) or causal_convolution(*a))
    rise = torch.linspace(0, 1, 300) if shape == "ramp" else (torch.arange(300) >= 200)
    assert max(_differences("auto", spread * rise.double()[None], _values(spread, 1, 1, 300))) <= 1e-10
    assert bool(calls) == transformed


def test_without_the_guard_digits_are_lost():
    lw = torch.cat([torch.zeros(200), torch.full((100,), 30.0)]).double()[None]
    values = _values(0, 1, 1, 300)
    error = (lag_attention(lw, values, path="fft") - lag_attention(lw, values, path="direct")).abs().max()
    assert error > 1e-6
    assert torch.equal(lag_attention(lw, values), lag_attention(lw, values, path="direct"))


@pytest.mark.parametrize("rise", [100.0, 800.0, 5000.0])
def test_an_underflowing_normaliser_takes_the_direct_path(rise):
    lw = torch.tensor([[0.0, rise, rise]], dtype=torch.float64)
    values = _values(0, 1, 1, 3)
    torch.testing.assert_close(lag_attention(lw, values)[0, 0, 0], values[0, 0, 0])


@pytest.mark.parametrize("path", ["fft", "direct", "auto"])
def test_a_position_without_past_attends_to_nothing(path):
    lw = encodings.make("log", heads=2).log_weights(100)
    lw = lw.detach().requires_grad_()
    y = lag_attention(lw, _values(0, 1, 2, 100), path=path)
    assert float(y[:, :, 0].detach().abs().max()) <= (1e-15 if path == "fft" else 0.0)
    (1e6 * y).square().sum().backward()
    assert bool(torch.isfinite(lw.grad).all())


def test_normalisers_by_hand():
    logits = torch.tensor([[0.0, math.log(2), -math.inf], [-math.inf] * 3], dtype=torch.float64)
    torch.testing.assert_close(normalise(logits, "softmax"), torch.tensor([[1 / 3, 2 / 3, 0], [0, 0, 0]]).double())
    torch.testing.assert_close(normalise(logits, "sink"), torch.tensor([[1 / 4, 2 / 4, 0], [0, 0, 0]]).double())
    torch.testing.assert_close(normalise(logits, "none"), torch.tensor([[1, 2, 0], [0, 0, 0]]).double())


def test_sink_is_softmax_with_an_extra_key():
    g = torch.Generator().manual_seed(0)
    logits = 30 * torch.randn(50, 7, dtype=torch.float64, generator=g)
    extended = torch.softmax(torch.cat([logits, torch.zeros(50, 1)], -1), -1)[:, :-1]
    torch.testing.assert_close(normalise(logits, "sink"), extended)


# ----------------------------------------------------- plain exponentials, the sink, and logits of the query alone


def _by_loops(log_weights, values, normaliser, query):
    """The definition, one position, head and past token after another: weights e^(q_t + phi(t - s)) over N_t."""
    batch, heads, length, width = values.shape
    y = torch.zeros_like(values)
    for b in range(batch):
        for h in range(heads):
            for t in range(length):
                raw = [math.exp(float(query[b, h, t]) + float(log_weights[h, t - s])) for s in range(t + 1)]
                total = {"softmax": sum(raw), "sink": 1.0 + sum(raw), "none": 1.0}[normaliser]
                for d in range(width):
                    mixed = sum(w * float(values[b, h, s, d]) for s, w in enumerate(raw))
                    y[b, h, t, d] = mixed / total if total else 0.0  # no admissible past: nothing
    return y


def _drawn(seed, length, heads=2, batch=1, hidden=()):
    """Biases by lag, of either sign, minus infinity at the ``hidden`` lags; values; queries."""
    g = torch.Generator().manual_seed(seed)
    lw = 2 * torch.randn(heads, length, dtype=torch.float64, generator=g)
    lw[:, [lag for lag in hidden if lag < length]] = -math.inf
    query = 2 * torch.randn(batch, heads, length, dtype=torch.float64, generator=g)
    return lw, _values(seed, batch, heads, length), query


PATHS = st.sampled_from(["fft", "direct", "auto"])
SEEDS = st.integers(0, 2**16)
QUERY_NORMALISERS = st.sampled_from(["sink", "none"])


@given(seed=SEEDS, length=st.integers(1, 14), path=PATHS, normaliser=QUERY_NORMALISERS,
       hidden=st.sampled_from([(), (0,), (0, 1, 2), (1, 3)]))  # fmt: skip
@settings(deadline=None, max_examples=60)
def test_query_logits_are_the_definition_in_loops(seed, length, path, normaliser, hidden):
    lw, values, query = _drawn(seed, length, hidden=hidden)
    expected = _by_loops(lw, values, normaliser, query)
    got = lag_attention(lw, values, normaliser, query, path)
    torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-10 * float(expected.abs().max() + 1))
    free = _by_loops(lw, values, normaliser, torch.zeros_like(query))
    torch.testing.assert_close(
        lag_attention(lw, values, normaliser, path=path), free, rtol=1e-10, atol=1e-10 * float(free.abs().max() + 1)
    )


@given(seed=SEEDS, length=st.integers(65, 200), normaliser=QUERY_NORMALISERS)
@settings(deadline=None, max_examples=40)
def test_query_logits_by_fft_and_directly(seed, length, normaliser):
    lw, values, query = _drawn(seed, length)
    direct = lag_attention(lw, values, normaliser, query, "direct")
    for path in ("fft", "auto"):
        got = lag_attention(lw, values, normaliser, query, path)
        torch.testing.assert_close(got, direct, rtol=0, atol=1e-10 * float(direct.abs().max() + 1))


@given(seed=SEEDS, length=st.integers(1, 120), path=PATHS)
@settings(deadline=None, max_examples=60)
def test_without_normaliser_a_query_logit_is_a_gate(seed, length, path):
    """e^q times the output without query: no more than a factor that the present token chooses for each head."""
    lw, values, query = _drawn(seed, length)
    free = lag_attention(lw, values, "none", path="direct")
    gated = query.exp()[..., None] * free
    got = lag_attention(lw, values, "none", query, path)
    torch.testing.assert_close(got, gated, rtol=0, atol=1e-10 * float(gated.abs().max()))


@given(seed=SEEDS, length=st.integers(1, 120), path=PATHS)
@settings(deadline=None, max_examples=60)
def test_with_a_sink_a_query_logit_is_a_gate_between_nothing_and_softmax(seed, length, path):
    """The output is softmax's times sigmoid(q + log Z): the same kernel, opened as far as the token says."""
    lw, values, query = _drawn(seed, length)
    soft = lag_attention(lw, values, "softmax", path="direct")
    gate = torch.sigmoid(query + lw.logcumsumexp(-1))[..., None]
    torch.testing.assert_close(lag_attention(lw, values, "sink", query, path), gate * soft, rtol=0, atol=1e-9)


@given(seed=SEEDS, length=st.integers(1, 40), shift=st.floats(-30, 30))
@settings(deadline=None, max_examples=60)
def test_a_query_logit_cancels_under_softmax_and_is_refused(seed, length, shift):
    """Why TMX needs a sink or no normaliser: softmax weights do not notice what is added to all logits of a row."""
    lw, values, query = _drawn(seed, length)
    plain = normalise(toeplitz(lw), "softmax").expand(1, -1, -1, -1)
    torch.testing.assert_close(normalise(toeplitz(lw) + shift + query[..., None], "softmax"), plain, rtol=0, atol=1e-12)
    with pytest.raises(ValueError, match="cancels under softmax"):
        lag_attention(lw, values, "softmax", query)


@given(seed=SEEDS, length=st.integers(1, 120), path=PATHS, factor=st.floats(-4, 4))
@settings(deadline=None, max_examples=60)
def test_without_normaliser_adding_to_logits_scales_the_output(seed, length, path, factor):
    lw, values, query = _drawn(seed, length)
    scaled = math.exp(factor) * lag_attention(lw, values, "none", query, path)
    tolerance = 1e-10 * float(scaled.abs().max())
    for more in ((lw + factor, query), (lw, query + factor)):
        torch.testing.assert_close(
            lag_attention(more[0], values, "none", more[1], path), scaled, rtol=0, atol=tolerance
        )
    assert torch.equal(normalise(lw, "none"), lw.exp())


@given(seed=SEEDS, length=st.integers(1, 100), path=st.sampled_from(["direct", "auto"]), offset=st.floats(0, 12))
@settings(deadline=None, max_examples=60)
def test_a_sink_with_lowered_logits_tends_to_no_normaliser(seed, length, path, offset):
    r"""The sink lemma: logits lowered by $c$ and the output raised by $e^c$ miss the plain sum by $e^{-c}Z^2|v|$."""
    lw, values, query = _drawn(seed, length)
    plain = lag_attention(lw, values, "none", query, "direct")
    total = (query + lw.logcumsumexp(-1)).exp()[..., None]
    sink = math.exp(offset) * lag_attention(lw, values, "sink", query - offset, path)
    torch.testing.assert_close(sink, plain / (1 + math.exp(-offset) * total), rtol=1e-9, atol=1e-9 * float(total.max()))
    bound = math.exp(-offset) * total.square() * values.abs().max()
    assert bool(((sink - plain).abs() <= bound * (1 + 1e-9) + 1e-9 * total.max()).all())


def test_the_sink_nears_the_plain_sum_at_the_rate_of_the_lemma():
    lw, values, query = _drawn(0, 30)
    plain = lag_attention(lw, values, "none", query)
    errors = [
        float((math.exp(c) * lag_attention(lw, values, "sink", query - c) - plain).abs().max()) for c in (16, 17, 18)
    ]
    assert errors[0] / errors[1] == pytest.approx(math.e, rel=0.02)
    assert errors[1] / errors[2] == pytest.approx(math.e, rel=0.02)


@given(seed=SEEDS, length=st.integers(1, 100), path=PATHS)
@settings(deadline=None, max_examples=40)
def test_a_sink_with_raised_logits_tends_to_softmax(seed, length, path):
    lw, values, query = _drawn(seed, length)
    soft = lag_attention(lw, values, "softmax", path="direct")
    torch.testing.assert_close(lag_attention(lw, values, "sink", query + 60, path), soft, rtol=0, atol=1e-9)


@given(seed=SEEDS, length=st.integers(1, 100), path=PATHS, normaliser=QUERY_NORMALISERS, blind=st.integers(1, 5))
@settings(deadline=None, max_examples=60)
def test_positions_without_admissible_past_output_zero(seed, length, path, normaliser, blind):
    """A head that does not see its ``blind`` nearest lags has nothing to read before position ``blind``."""
    lw, values, query = _drawn(seed, length, hidden=range(blind))
    y = lag_attention(lw, values, normaliser, query, path)
    rounding = 1e-12 * float((lw.max() + query.max()).exp()) if path == "fft" else 0.0
    assert float(y[:, :, :blind].abs().max()) <= rounding
    later = lag_attention(lw, values, normaliser, query, "direct")[:, :, blind:]
    assert bool((later.abs().amax((0, 1, 3)) > 0).all())  # from there on there is something to read


@pytest.mark.parametrize("path", ["fft", "direct", "auto"])
@pytest.mark.parametrize("level", [-5000.0, -720.0, 0.0, 720.0, 5000.0])
def test_the_sink_survives_extreme_queries(path, level):
    """Closed it lets nothing through, open it is softmax; gradients stay finite, and are right at query zero."""
    lw, values, _ = _drawn(0, 100)
    query = torch.full((1, 2, 100), level, dtype=torch.float64, requires_grad=True)
    lw.requires_grad_()
    y = lag_attention(lw, values, "sink", query, path)
    y.sum().backward()
    assert bool(torch.isfinite(query.grad).all()) and bool(torch.isfinite(lw.grad).all())
    soft = lag_attention(lw.detach(), values, "softmax", path="direct")
    gate = torch.sigmoid(level + lw.detach().logcumsumexp(-1))[..., None]
    torch.testing.assert_close(y.detach(), gate * soft, rtol=0, atol=1e-10)
    slope = (gate * (1 - gate) * soft).sum(-1)
    torch.testing.assert_close(query.grad[0], slope[0], rtol=0, atol=1e-9)


# ------------------------------------------------------------------------------------------------- population loss


def test_population_loss_is_the_mean_square_error_on_independent_tokens():
    """Sampled against exact: 200,000 independent windows of uniform tokens, variance 1/3."""
    g = torch.Generator().manual_seed(0)
    lags = torch.arange(30, dtype=torch.float64)
    rho, heads = (1 + lags) ** -1.5, torch.stack([torch.exp(-p * lags) for p in (0.1, 1.0)])
    c = kernels.best_weights(rho, heads)
    exact = float(kernels.population_loss(rho, heads, c, variance=1 / 3))
    x = 2 * torch.rand(200_000, 30, dtype=torch.float64, generator=g) - 1
    errors = (x @ (rho - c @ heads)).square()
    assert abs(float(errors.mean()) - exact) < 5 * float(errors.std()) / math.sqrt(len(errors))


@given(st.integers(0, 2**16))
@settings(deadline=None, max_examples=25)
def test_best_weights_cannot_be_improved(seed):
    g = torch.Generator().manual_seed(seed)
    rho, heads = torch.randn(20, dtype=torch.float64, generator=g), torch.randn(3, 20, dtype=torch.float64, generator=g)
    c = kernels.best_weights(rho, heads)
    nearby = c + 1e-3 * torch.randn(3, dtype=torch.float64, generator=g)
    assert kernels.population_loss(rho, heads, c) < kernels.population_loss(rho, heads, nearby)
