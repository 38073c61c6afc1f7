"""Tails of sequences whose tail is known, forecasts against formulas, and the small text model."""

import inspect
import math

import numpy as np
import pytest
import torch

from memlib import data, tails
from memlib.experiments import real_memory

LAGS = tails.lag_grid(500)


# ---------------------------------------------------------------- measuring a decay


def test_lag_grid():
    grid = tails.lag_grid(1000)
    assert grid[0] == 1 and grid[-1] == 1000 and (np.diff(grid) > 0).all() and list(grid[:6]) == [1, 2, 3, 4, 5, 6]
    assert list(tails.lag_grid(2)) == [1, 2]


def test_autocorrelation_is_that_of_the_definition():
    x = np.random.default_rng(0).standard_normal(200).cumsum()
    z = x - x.mean()
    decay = tails.autocorrelation(x, [1, 5, 20], blocks=4)
    wanted = [(z[:-s] * z[s:]).mean() / (z * z).mean() for s in (1, 5, 20)]
    assert decay.values == pytest.approx(wanted, rel=1e-12)
    keep = np.arange(200) >= 50  # the first of four blocks left out: its products are missing, the mean stays
    left = [(z[:-s] * z[s:])[keep[:-s]].mean() / (z * z)[keep].mean() for s in (1, 5, 20)]
    assert decay.without[0] == pytest.approx(left, rel=1e-12)


def test_standard_errors_of_white_noise_are_right():
    """1 / sqrt(n) at every lag: the estimate from 20 blocks scatters, its mean over lags does not."""
    decay = tails.autocorrelation(np.random.default_rng(1).standard_normal(20_000), np.arange(1, 201))
    assert np.sqrt((decay.error**2).mean()) == pytest.approx(20_000**-0.5, rel=0.1)
    assert (np.abs(decay.values) / decay.error).mean() == pytest.approx(math.sqrt(2 / math.pi), rel=0.2)


def test_mutual_information_of_a_markov_chain():
    """Two states that change with probability q: known in closed form at every lag."""
    q, rng = 0.05, np.random.default_rng(0)
    x = np.cumsum(rng.random(400_000) < q) % 2
    decay = tails.mutual_information(x, [1, 2, 5, 10, 20])
    stay = 0.5 + 0.5 * (1 - 2 * q) ** decay.lags
    wanted = math.log(2) + stay * np.log(stay) + (1 - stay) * np.log(1 - stay)
    assert (np.abs(decay.values - wanted) < 4 * decay.error).all()
    assert decay.values == pytest.approx(wanted, rel=0.05)


def test_bias_of_finite_samples_is_removed():
    x = np.random.default_rng(2).integers(0, 50, 20_000)
    decay = tails.mutual_information(x, np.arange(1, 30))
    assert decay.floor == pytest.approx(49**2 / 40_000, rel=0.1)
    assert abs(decay.values.mean()) < 0.03 * decay.floor
    assert (np.abs(decay.values) < 4 * decay.error).all()
    shifted = tails.mutual_information(x + 7, np.arange(1, 30))
    assert np.array_equal(decay.values, shifted.values)


# ---------------------------------------------------------------- verdicts on sequences with known tail


@pytest.mark.parametrize("seed", range(8))
def test_numbers_are_called_right(seed):
    def verdict(x):
        return tails.compare(tails.autocorrelation(x, LAGS)).verdict

    assert verdict(np.random.default_rng(seed).standard_normal(20_000)) == "none"
    assert verdict(real_memory.sample("ar", 0.9, 20_000, seed)) == "light"
    assert verdict(real_memory.sample("fractional", 0.3, 20_000, seed)) == "heavy"


@pytest.mark.parametrize("seed", range(3))
def test_symbols_are_called_right(seed):
    rng = np.random.default_rng(seed)
    assert tails.compare(tails.mutual_information(rng.integers(0, 30, 100_000), LAGS)).verdict == "none"
    chain = np.cumsum(rng.random(100_000) < 0.05) % 2
    found = tails.compare(tails.mutual_information(chain, LAGS))
    assert found.verdict == "light"
    assert found.light.exponent == pytest.approx(-2 * math.log(0.9), rel=0.15)  # the square of the correlation
    signs = (real_memory.sample("fractional", 0.4, 200_000, seed) > 0).astype(int)
    assert tails.compare(tails.mutual_information(signs, LAGS)).verdict == "heavy"


def test_short_sequences_stay_undecided_and_cycles_oscillate():
    short = tails.autocorrelation(real_memory.sample("fractional", 0.3, 150, 1), tails.lag_grid(50), blocks=10)
    assert tails.compare(short).verdict in ("undecided", "none")
    t = np.arange(600)
    wave = np.cos(2 * np.pi * t / 11) + 0.5 * np.random.default_rng(0).standard_normal(600)
    assert tails.compare(tails.autocorrelation(wave, tails.lag_grid(100))).verdict == "oscillating"


def exact(kind, noise=1e-3):
    """A decay that is one of the shapes, with small errors."""
    values = 0.5 * LAGS**-0.7 if kind == "heavy" else 0.5 * np.exp(-0.01 * LAGS)
    scatter = noise * np.random.default_rng(0).standard_normal((20, len(LAGS))) / math.sqrt(19)
    return tails.Decay(LAGS, values, np.full(len(LAGS), noise), values + scatter, 0.0, "made")


@pytest.mark.parametrize(("kind", "exponent"), [("heavy", 0.7), ("light", 0.01)])
def test_exact_shapes_are_found(kind, exponent):
    found = tails.compare(exact(kind))
    tail = getattr(found, kind)
    assert found.verdict == kind and found.used == len(LAGS)
    assert (tail.constant, tail.exponent) == pytest.approx((0.5, exponent), rel=1e-6) and tail.misfit < 1e-9
    assert 0 < tail.exponent_error < 0.05 * exponent
    assert tail(LAGS) == pytest.approx(exact(kind).values, rel=1e-5)
    assert abs(found.evidence) > 10 * found.evidence_error > 0
    assert tails.compare(exact(kind), first=10).first >= 10


# ---------------------------------------------------------------- forecasts


def test_autocovariances_of_the_processes_are_those_of_their_samples():
    for name, parameter in (("ar", 0.8), ("arma", 0.8), ("fractional", 0.2)):
        x = real_memory.sample(name, parameter, 200_000, 0)
        gamma = real_memory.autocovariance(x, 5)
        assert gamma / gamma[0] == pytest.approx(real_memory.process(name, parameter, 5), abs=0.02)


def test_best_forecast_of_an_autoregression_is_one_lag():
    gamma = real_memory.process("ar", 0.9, 50)
    best = real_memory.best_kernel(gamma)
    assert best.error == pytest.approx(1 - 0.81, rel=1e-9)
    assert best.kernel[0] == pytest.approx(0.9) and np.abs(best.kernel[1:]).max() < 1e-9
    for encoding in ("lin", "log"):
        assert real_memory.best_forecast(gamma, encoding, 1).error == pytest.approx(best.error, rel=1e-9)


def test_through_noise_one_lin_head_is_exact():
    """The Kalman filter: an exponential kernel, whose rate solves a quadratic equation."""
    gamma = real_memory.process("arma", 0.9, 200)
    found = real_memory.best_forecast(gamma, "lin", 1)
    assert found.error == pytest.approx(real_memory.best_kernel(gamma).error, rel=1e-9)
    variance = max(np.roots([1, 1 - 0.81 - 0.19, -0.19]))  # of the forecast of the state: P = 0.81 P / (P + 1) + 0.19
    assert found.rates[0] == pytest.approx(-math.log(0.9 / (variance + 1)), rel=1e-3)


def test_the_kind_of_tail_decides_with_few_heads():
    gamma = real_memory.process("fractional", 0.3, 200)
    least = real_memory.best_kernel(gamma).error
    lin, log = (real_memory.best_forecast(gamma, encoding, 1).error - least for encoding in ("lin", "log"))
    assert 0 < log < lin / 10
    errors = [real_memory.best_forecast(gamma, "lin", h).error for h in (1, 2, 4)]
    assert errors[0] > errors[1] > errors[2] > least


def test_error_is_the_quadratic_form_and_that_of_a_long_sample():
    gamma = real_memory.process("fractional", 0.3, 60)
    found = real_memory.best_forecast(gamma, "log", 2)
    k = found.kernel
    matrix = gamma[np.abs(np.subtract.outer(np.arange(60), np.arange(60)))]
    assert gamma[0] - 2 * k @ gamma[1:] + k @ matrix @ k == pytest.approx(found.error, rel=1e-8)
    x = real_memory.sample("fractional", 0.3, 200_000, 3)
    measured = (real_memory.forecast_errors(k, x, 1000) ** 2).mean() / (x**2).mean()
    assert measured == pytest.approx(found.error, rel=0.02)


def test_forecast_errors_by_hand():
    errors = real_memory.forecast_errors(np.array([0.5, 0.25]), np.array([1.0, 2.0, 3.0, 5.0]), 2)
    assert errors.tolist() == [3 - (0.5 * 2 + 0.25 * 1), 5 - (0.5 * 3 + 0.25 * 2)]


def test_anomalies_have_neither_trend_nor_season():
    t = np.arange(600)
    made = 3 + 0.01 * t + 1e-5 * t**2 + np.sin(2 * np.pi * t / 12)
    series = data.Series("x", "x", made, np.zeros(600, bool), "", "month", 12.0, "", "")
    assert np.abs(real_memory.anomalies(series)).max() < 1e-9
    nile = data.series("nile")
    assert real_memory.anomalies(nile) == pytest.approx(nile.values - nile.values.mean())


# ---------------------------------------------------------------- text models


def test_four_encodings_two_tails_two_sights():
    for encoding, (tail, own) in real_memory.ENCODINGS.items():
        made = real_memory.model(encoding, 2, 0)
        weights = made.layers[0].attention.encoding.log_weights(400).exp().detach().numpy()
        assert (weights[:, 0] == 0).all() if own == "not seen" else (weights[:, 0] == 1).all()
        ratio = weights[:, 2:] / weights[:, 1:-1]  # of an exponential constant, of a power law tending to 1
        assert np.allclose(ratio[:, 5], ratio[:, 150], atol=1e-9) == (tail == "exponential")
    lin, past = (real_memory.model(e, 2, 0).layers[0].attention.encoding.log_weights(9) for e in ("lin", "lin_past"))
    assert torch.equal(lin[:, 1:], past[:, 1:])
    sizes = {e: sum(p.numel() for p in real_memory.model(e, 4, 0).parameters()) for e in real_memory.ENCODINGS}
    assert sizes["lin"] == sizes["lin_past"] == sizes["log"] == sizes["kerple_log"] - 4


def test_run_learns_and_repeats():
    point = {"text": "docstrings", "encoding": "lin_past", "heads": 2, "seed": 0, "batch": 4, "length": 32}
    start, end = (real_memory.run(**point, steps=steps) for steps in (1, 40))
    assert end["loss"] < start["loss"] - 0.5 and end["tuning"] < start["tuning"] - 0.5
    assert real_memory.run(**point, steps=40) == end
    assert len(end["slopes"]) == 2 and end["slopes"] == sorted(end["slopes"])


def test_grids():
    book = real_memory.grid("book")
    assert len(book) == 48 and {p["heads"] for p in book} == set(real_memory.TEXT_HEADS)
    default = inspect.signature(real_memory.run).parameters["lr"].default
    assert default in real_memory.LEARNING_RATES and real_memory.PILOT_SEED not in real_memory.SEEDS
    assert {p["lr"] for p in real_memory.grid("large")} >= {0.01}


# ---------------------------------------------------------------- bad input

X = np.random.default_rng(0).standard_normal(100)
BAD = [
    (lambda: tails.lag_grid(1), ValueError, "last must be an integer of at least 2, got 1"),
    (lambda: tails.autocorrelation(X, [0, 1]), ValueError, "lags must be increasing integers from 1 on"),
    (lambda: tails.autocorrelation(X, [2, 1]), ValueError, "lags must be increasing integers from 1 on"),
    (lambda: tails.autocorrelation(X, [1, 51]), ValueError, "lags must not exceed half the sequence, 50, got 51"),
    (lambda: tails.autocorrelation(X, [1], blocks=1), ValueError, "blocks must be an integer of at least 2, got 1"),
    (lambda: tails.autocorrelation(X[:30], [1]), ValueError, "at least 2 \\* blocks = 40 entries, got shape"),
    (lambda: tails.autocorrelation(np.ones(100), [1]), ValueError, "finite numbers that are not all equal"),
    (lambda: tails.mutual_information(X, [1]), TypeError, "tokens must be integers, got float64"),
    (lambda: tails.mutual_information(np.ones(100, int), [1]), ValueError, "a single symbol"),
    (lambda: tails.compare(X), TypeError, "compare wants a Decay"),
    (lambda: tails.compare(exact("heavy"), first=0), ValueError, "first must be an integer of at least 1, got 0"),
    (lambda: tails.compare(exact("heavy"), tolerance=0), ValueError, "tolerance must be a positive finite number"),
    (lambda: real_memory.process("ma", 0.5, 5), ValueError, "unknown process 'ma'; allowed: ar, arma, fractional"),
    (lambda: real_memory.process("fractional", 0.5, 5), ValueError, "fractional must lie strictly between 0 and 0.5"),
    (lambda: real_memory.sample("ar", 1.0, 5, 0), ValueError, "ar must lie strictly between 0 and 1.0, got 1.0"),
    (lambda: real_memory.autocovariance(X, 100), ValueError, "length must be below the number of values, 100, got 100"),
    (lambda: real_memory.best_forecast([1.0, 0.5], "t5", 1), ValueError, "unknown encoding 't5' for a forecast"),
    (lambda: real_memory.best_forecast([1.0, 0.5], "lin", 0), ValueError, "heads must be an integer of at least 1"),
    (lambda: real_memory.best_kernel([1.0]), ValueError, "at least two finite numbers, the first positive"),
    (lambda: real_memory.best_kernel([1.0, 1.5, 0.0]), ValueError, "this is no autocovariance"),
    (lambda: real_memory.forecast_errors([1.0], X, 100), ValueError, "first must lie in 1..99, got 100"),
    (lambda: real_memory.model("t5", 1, 0), ValueError, "unknown encoding 't5' for this experiment; allowed: lin,"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "error", "message"), BAD)
def test_bad_input(call, error, message):
    with pytest.raises(error, match=message):
        call()
