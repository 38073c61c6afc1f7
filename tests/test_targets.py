"""The three memory classes against loops over positions."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from memlib.targets import AdaptiveSparse, EssentiallySparse, Finite, FixedSparse, Interval


def _generator(seed=0):
    return torch.Generator().manual_seed(seed)


def _at(x, b, t):
    return x[b, t] if t >= 0 else torch.zeros(x.shape[-1], dtype=x.dtype)


@given(st.lists(st.integers(1, 20), unique=True, max_size=4), st.integers(21, 40), st.integers(0, 99))
@settings(deadline=None, max_examples=30)
def test_fixed_is_the_formula(lags, length, seed):
    weights = torch.tensor([0.5, -2.0, 3.0, 0.25, 1.0], dtype=torch.float64)

    def readout(z):
        return (z[..., 0] * weights[: z.shape[2]]).sum(-1, keepdim=True).sin() + z[..., 0, 1:]

    target = FixedSparse(readout, lags, inputs=[Interval(), Finite([0, 1])])
    x, y = target.sample(2, length, _generator(seed))
    for t in range(length):
        tokens = [_at(x, 1, t), *(_at(x, 1, t - lag) for lag in lags)]
        expected = math.sin(sum(float(w * z[0]) for w, z in zip(weights, tokens, strict=False))) + float(x[1, t, 1])
        assert float(y[1, t, 0]) == pytest.approx(expected, abs=1e-12)
    assert target.burn_in == max(lags, default=0)


def _chase(nesting):
    pointers = [
        lambda z: z[:, :, 0, 1],
        lambda z: (z[:, :, 0, 1] + z[:, :, -1, 1]) % 4 + 1,
        lambda z: (z[:, :, 0, 1] + 2 * z[:, :, -1, 1]) % 4 + 1,
    ]
    return AdaptiveSparse(lambda z: z[:, :, -1, :1], pointers, [4, 4, 4], nesting, [Interval(), Finite([1, 2, 3, 4])])


@pytest.mark.parametrize("nesting", [0, 1, 2, 3])
def test_adaptive_is_the_formula(nesting):
    target = _chase(nesting)
    x, y = target.sample(3, 30, _generator())
    for b in range(3):
        for t in range(4, 30):
            tokens = [x[b, t]]
            for i in range(3):
                seen = tokens[: min(i, nesting) + 1]
                first, last = float(seen[0][1]), float(seen[-1][1])
                lag = int([first, (first + last) % 4 + 1, (first + 2 * last) % 4 + 1][i])
                assert int(target.lags(x)[b, t, i]) == lag
                tokens.append(x[b, t - lag])
            assert float(y[b, t, 0]) == float(tokens[-1][0])


def test_nesting_matters():
    x, _ = _chase(0).sample(4, 40, _generator())
    outputs = [_chase(k)(x) for k in (0, 1, 2)]
    assert not torch.equal(outputs[0], outputs[1])
    assert not torch.equal(outputs[1], outputs[2])


@given(st.integers(1, 200), st.integers(0, 99))
@settings(deadline=None, max_examples=25)
def test_essential_is_the_formula(length, seed):
    target = EssentiallySparse(
        lambda z: z[..., 0].prod(-1, keepdim=True), [lambda s: (1 + s) ** -1.5, lambda s: torch.exp(-s / 4)]
    )
    x, y = target.sample(1, length, _generator(seed))
    t = length - 1
    filtered = [
        sum(rho(s) * float(x[0, t - s, 0]) for s in range(t + 1))
        for rho in (lambda s: (1 + s) ** -1.5, lambda s: math.exp(-s / 4))
    ]
    assert float(y[0, t, 0]) == pytest.approx(math.prod(filtered), abs=1e-11)


def test_essential_tail():
    target = EssentiallySparse(lambda z: z[:, :, 0], [lambda s: torch.exp(-s / 4)])
    expected = math.exp(-10 / 4) / -math.expm1(-1 / 4)
    assert float(target.tail(10)[0]) == pytest.approx(expected, rel=1e-12)


def test_samples_follow_their_channels():
    target = FixedSparse(lambda z: z[..., 0, :1], [1], inputs=[Interval(2, 3), Finite([-1, 5])])
    x, _ = target.sample(200, 50, _generator())
    assert 2 <= float(x[..., 0].min()) < 2.01 and 2.99 < float(x[..., 0].max()) <= 3
    assert set(x[..., 1].unique().tolist()) == {-1, 5}
    assert abs(float((x[..., 1] == 5).double().mean()) - 0.5) < 0.03


def test_sampling_is_explicit_about_its_generator():
    target = FixedSparse(lambda z: z[..., 0, :1], [1])
    assert torch.equal(target.sample(2, 5, _generator(3))[0], target.sample(2, 5, _generator(3))[0])
    assert not torch.equal(target.sample(2, 5, _generator(3))[0], target.sample(2, 5, _generator(4))[0])


def test_dependence_shows_the_memory():
    fixed = FixedSparse(lambda z: z[..., 0].sum(-1, keepdim=True), [2, 5])
    x, _ = fixed.sample(1, 12, _generator())
    expected = sum(torch.diag(torch.ones(12 - lag), -lag) for lag in (0, 2, 5))
    assert torch.equal(fixed.dependence(x[0]), expected.double())
    adaptive = _chase(1)
    x, _ = adaptive.sample(1, 20, _generator())
    for t in range(4, 20):
        row = adaptive.dependence(x[0])[t]
        assert row.nonzero().flatten().tolist() == [t - int(adaptive.lags(x)[0, t, -1])]
