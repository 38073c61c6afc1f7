"""One rotary head that reads the lag its token names: amplitude, gap, error; windows up to 1,024."""

import itertools
import math

import numpy as np
import pytest
import torch

import memlib
from memlib import construct
from memlib.construct import Pointer, rotary_frequencies, rotary_gap, rotary_pointer, rotary_row
from memlib.model import Transformer

each_set = pytest.mark.parametrize("frequencies", ["full", "standard", 1, 3])


# ---------------------------------------------------------------- the lemma


@pytest.mark.parametrize("window", [2, 3, 16, 17, 100])
def test_the_full_set_is_equally_far_from_every_other_lag(window):
    omega = rotary_frequencies(window, "full")
    period = 2 * len(omega) + 1
    assert period >= window > period - 2
    distances = [np.mean(1 - np.cos(omega * z)) for z in range(1, window)]
    assert distances == pytest.approx([period / (2 * len(omega))] * (window - 1))
    assert rotary_gap(omega, window) == pytest.approx(period / (2 * len(omega)))


def test_gaps_by_hand():
    assert rotary_gap(rotary_frequencies(16, 1), 16) == pytest.approx(1 - math.cos(2 * math.pi / 16))
    assert rotary_gap(rotary_frequencies(2048, "standard"), 2048) == pytest.approx(0.034, abs=5e-4)
    slow = rotary_gap(rotary_frequencies(10**6, 1), 10**6)  # no digits lost: 2 sin^2 instead of 1 - cos
    assert slow == pytest.approx(2 * (math.pi / 10**6) ** 2, rel=1e-9)
    omega = rotary_frequencies(8, 2)
    assert rotary_gap(omega, 8, [1.0, 0.0]) == pytest.approx(1 - math.cos(math.pi / 4))
    assert rotary_gap([0.0, math.pi], 3) == pytest.approx(0.0, abs=1e-30)  # lag 2 looks like lag 0


def test_the_amplitude_of_the_lemma():
    """Full set: (2 / P) log(2 (N - 1) / eps) for each frequency."""
    made = rotary_pointer(16, range(1, 16), error=1e-3)
    assert made.per_frequency == pytest.approx(2 / 17 * math.log(30 / 1e-3))
    assert made.amplitude == pytest.approx(8 * made.per_frequency)
    assert made.predicted_error == pytest.approx(1e-3)
    one = rotary_pointer(16, range(1, 16), error=1e-3, frequencies=1)
    assert one.amplitude == pytest.approx(math.log(30 / 1e-3) / (1 - math.cos(math.pi / 8)))


# ---------------------------------------------------------------- the model


@each_set
@pytest.mark.parametrize("window", [16, 64, 256, 1024])
def test_the_error_is_below_the_bound_on_the_worst_inputs(window, frequencies):
    lags = [1, window // 3, window - 1]
    made = rotary_pointer(window, lags, error=1e-3, frequencies=frequencies)
    assert made.model.config.heads == 1 and made.model.config.normaliser == "softmax"
    x = made.worst_inputs()
    with torch.no_grad():
        found = (made.model(x)[:, -1] - made.target(x)[:, -1]).abs()[:, 0]
    assert float(found.max()) <= made.predicted_error + made.float_error
    assert made.predicted_error == pytest.approx(1e-3, rel=1e-9)
    assert float(found.max()) == pytest.approx(made.exact_error, rel=1e-6)
    assert made.exact_error <= made.predicted_error
    assert made.float_error < 1e-8


@pytest.mark.parametrize("window", [16, 64, 256])
def test_every_row_of_a_long_table_points(window):
    """All lags at once, random symbols: every attention row is within the bound of its delta."""
    made = rotary_pointer(window, range(1, window), error=1e-2)
    x, _ = made.target.sample(2, window, memlib.reproducible(0))
    weights = made.model.attention_maps(x)[1][:, 0]  # the second layer reads
    lags = made.target.lags(x)[..., 0]
    position = torch.arange(window)
    seen = lags <= position
    rows = weights[seen]
    wanted = torch.zeros_like(weights)
    wanted.scatter_(2, (position - lags).clamp(min=0)[..., None], 1.0)
    distance = (rows - wanted[seen]).abs().sum(1)
    assert int(seen.sum()) > window // 2
    assert float(distance.max()) <= made.predicted_error + made.float_error


def test_a_table_of_a_thousand_lags():
    made = rotary_pointer(1024, range(1, 1024), frequencies="standard")
    x = made.worst_inputs()[[0, 511, 1022]]
    with torch.no_grad():
        assert float((made.model(x)[:, -1, 0] - 1).abs().max()) <= made.predicted_error + made.float_error


@each_set
def test_the_attention_row_is_the_formula(frequencies):
    made = rotary_pointer(24, [3, 9, 20], frequencies=frequencies, amplitude=2.0)
    x, _ = made.target.sample(1, 24, memlib.reproducible(3))
    row = made.model.attention_maps(x)[1][0, 0, -1].flip(-1).numpy()
    lag = int(made.target.lags(x)[0, -1, 0])
    assert row == pytest.approx(made.row(lag), abs=1e-12)
    assert np.argmax(row) == lag or made.exact_error > 1
    short = rotary_row(made.frequencies, 2.0, 3, 10)
    assert len(short) == 10 and short.sum() == pytest.approx(1)


@each_set
def test_the_error_falls_exponentially_with_the_amplitude(frequencies):
    """Slope of log error against A: -gamma, up to the number of lags that tie."""
    made = [rotary_pointer(32, [5, 17], frequencies=frequencies, amplitude=a) for a in (0.0, *np.linspace(1, 20, 5))]
    scale = [m.amplitude for m in made]
    bound = [2 * 31 * math.exp(-a * made[0].gamma) for a in scale]
    exact = [m.exact_error for m in made]
    assert exact[0] == pytest.approx(2 * 31 / 32)  # amplitude 0: the plain average
    assert all(e <= min(b, 2) + 1e-12 for e, b in zip(exact, bound, strict=True))
    assert all(b < a for a, b in itertools.pairwise(exact))
    far = [rotary_pointer(32, [17], frequencies=frequencies, amplitude=a / made[0].gamma) for a in (20.0, 25.0)]
    assert far[1].exact_error / far[0].exact_error == pytest.approx(math.exp(-5), rel=0.05)


def test_random_inputs_and_measured_error():
    made = rotary_pointer(40, [1, 7, 39], error=1e-4)
    x, y = made.target.sample(20, 40, memlib.reproducible(1))
    assert made.measured_error(x) <= made.predicted_error + made.float_error
    assert torch.equal(y[:, -1, 0], x[torch.arange(20), 39 - made.target.lags(x)[:, -1, 0], 0])
    blunt = rotary_pointer(40, [1, 7, 39], amplitude=0.0)
    assert blunt.measured_error(x) > 0.5
    assert blunt.predicted_error == 2.0


def test_the_weights_alone_do_the_work(tmp_path):
    made = rotary_pointer(16, [2, 5, 11])
    made.model.save(tmp_path / "model.safetensors")
    x, _ = made.target.sample(3, 16, memlib.reproducible(0))
    with torch.no_grad():
        assert torch.equal(Transformer.load(tmp_path / "model.safetensors")(x), made.model(x))
    assert set(made.slots) == {"x", "symbol", "one", "query", "y"}
    covered = sorted(i for part in made.slots.values() for i in range(part.start, part.stop))
    assert covered == list(range(made.model.config.d_model))
    assert made.theorem == "a:thm-rotary"


def test_the_query_slot_holds_the_angles():
    made = rotary_pointer(16, [2, 5, 11])
    x = torch.zeros(3, 1, 2, dtype=torch.float64)
    x[:, 0, 1] = torch.arange(3)
    with torch.no_grad():
        query = made.model.residual_stream(x)[1][:, 0, made.slots["query"]].numpy()
    angles = np.outer([2, 5, 11], made.frequencies)
    assert query == pytest.approx(np.concatenate([np.cos(angles), -np.sin(angles)], axis=1), abs=1e-13)


def test_a_pointer_object_will_do():
    pointer = Pointer([[0.0, -2.0]], {-6.0: 4, -2.0: 9, 4.0: 1})  # symbols 3, 1, -2
    made = rotary_pointer(16, pointer)
    assert made.symbols == (-2.0, 1.0, 3.0) and made.lags == (1, 9, 4)
    x, _ = made.target.sample(10, 16, memlib.reproducible(0))
    assert made.measured_error(x) <= made.predicted_error + made.float_error
    single = rotary_pointer(4, [2])
    x, _ = single.target.sample(4, 4, memlib.reproducible(0))
    assert single.measured_error(x) <= single.predicted_error + single.float_error


BAD = [
    (dict(window=1), "window must be an integer of at least 2"),
    (dict(table=[16]), r"lie in 1..15 \(the window less one\), got 16"),
    (dict(table=[0, 3]), "a pointer's lag must be an integer of at least 1, got 0"),
    (dict(table=[]), "at least one value"),
    (dict(table=5), "table must be a sequence of lags"),
    (dict(error=0.0), "error must be a positive finite number"),
    (dict(amplitude=-1.0), "amplitude must be at least 0"),
    (dict(amplitude=math.nan), "amplitude must be a finite number"),
    (dict(frequencies="fourier"), "allowed: full, standard, or a number"),
    (dict(frequencies=0), "must be an integer of at least 1, got 0"),
    (dict(frequencies=9), "only 8 differ, got 9"),
    (dict(frequencies="standard", d_head=7), "even d_head"),
    (dict(table=Pointer([[1.0, 0.0]], {0.0: 1})), r"its weights must be \(\(0, w\),\)"),
]


@pytest.mark.parametrize("arguments, message", BAD, ids=[m for _, m in BAD])
def test_bad_input_says_what_is_allowed(arguments, message):
    arguments = {"window": 16, "table": [1, 2], **arguments}
    with pytest.raises(ValueError, match=message):
        construct.rotary_pointer(arguments.pop("window"), arguments.pop("table"), **arguments)


def test_shares_must_be_shares():
    with pytest.raises(ValueError, match="with sum 1"):
        rotary_gap([1.0, 2.0], 8, [0.5, 0.6])
