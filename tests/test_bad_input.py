"""Bad input gets an error that says what was wrong and what is allowed. One table per module: call, error, message."""

import math

import numpy as np
import pytest
import torch

import memlib
from memlib import encodings, kernels
from memlib.model import FeedForward, Transformer, TransformerConfig
from memlib.targets import AdaptiveSparse, EssentiallySparse, Finite, FixedSparse, Interval, shift
from memlib.train import relative_error


def config(**changes):
    return lambda: TransformerConfig(**changes)


CONFIGS = [
    ({"heads": 0}, "heads must be an integer of at least 1, got 0"),
    ({"heads": -2}, "heads must be an integer of at least 1, got -2"),
    ({"heads": 2.0}, "heads must be an integer of at least 1, got 2.0"),
    ({"heads": True}, "heads must be an integer of at least 1, got True"),
    ({"layers": 0}, "layers must be an integer of at least 1"),
    ({"width": -1}, "width must be an integer of at least 0"),
    ({"d_model": 0}, "d_model must be an integer of at least 1"),
    ({"d_in": None}, "d_in must be an integer of at least 1"),
    ({"d_model": 10, "heads": 4}, "heads must divide d_model unless d_head is given: d_model=10, heads=4"),
    ({"d_head": 0}, "d_head must be an integer of at least 1"),
    ({"encoding": "rope"}, "unknown encoding 'rope'; known encodings: lin, log, alibi"),
    ({"attention": "softmax"}, "unknown attention 'softmax'; allowed: dp, dp_free, tmx, linear"),
    ({"normaliser": "l1"}, "unknown normaliser 'l1'; allowed: softmax, sink, none"),
    ({"norm": "both"}, "unknown norm 'both'; allowed: none, pre, post"),
    ({"norm_kind": "batch"}, "unknown norm_kind 'batch'; allowed: layer, rms"),
    ({"dtype": "float16"}, "unknown dtype 'float16'; allowed: float64, float32"),
    (
        {"encoding": "rotary", "attention": "dp_free"},
        "'dp_free' has no meaning with the multiplicative encoding 'rotary'",
    ),
    ({"encoding": "learned", "attention": "dp_free"}, "'dp_free' has no meaning with the absolute encoding 'learned'"),
    ({"encoding": "rotary", "attention": "tmx", "normaliser": "sink"}, "'tmx' has no meaning with the multiplicative"),
    ({"encoding": "rotary", "attention": "linear"}, "allowed kinds of encoding: additive, absolute, none"),
    ({"attention": "tmx"}, "'tmx' has no meaning with normaliser 'softmax': .* allowed normalisers: sink, none"),
    ({"encoding": "rotary", "d_model": 9, "heads": 3}, "rotary encoding needs an even d_head, got 3"),
    ({"encoding_params": {"slope": 1}}, "encoding 'lin' has no parameter slope; it has: slopes"),
    ({"encoding": "none", "encoding_params": {"slopes": [1]}}, "encoding 'none' has no parameter slopes"),
    (
        {"encoding_params": {"slopes": [1.0, 2.0]}},
        "slopes \\(one per head\\) must be finite numbers of shape \\(1,\\), got shape \\(2,\\)",
    ),
    ({"encoding_params": {"slopes": [-1.0]}}, "slopes must be positive, got \\[-1.0\\]"),
    ({"encoding_params": {"slopes": [math.nan]}}, "slopes \\(one per head\\) must be finite numbers"),
    ({"encoding": "kerple_power", "encoding_params": {"powers": [2.0]}}, "powers must lie strictly between 0 and 2"),
    ({"encoding": "t5", "encoding_params": {"buckets": 1}}, "buckets must be an integer of at least 2, got 1"),
    (
        {"encoding": "t5", "encoding_params": {"max_distance": 16}},
        "max_distance must be an integer above .* = 16, got 16",
    ),
    (
        {"encoding": "t5", "encoding_params": {"table": torch.zeros(3, 32)}},
        "table .* must be finite numbers of shape \\(1, 32\\), got shape \\(3, 32\\)",
    ),
    ({"encoding": "rotary", "encoding_params": {"base": -1.0}}, "base must be a positive finite number, got -1.0"),
    (
        {"encoding": "rotary", "encoding_params": {"frequencies": [1.0]}},
        "frequencies must be finite numbers of shape \\(8,\\)",
    ),
    ({"encoding": ["lin"]}, "unknown encoding \\['lin'\\]; known encodings: lin"),
    ({"encoding_params": None}, "encoding_params must be a dictionary of parameter names and values, got None"),
    ({"encoding_params": {"heads": 2}}, "encoding 'lin' has no parameter heads; it has: slopes"),
    ({"encoding_params": {"slopes": "abc"}}, "slopes .* must be numbers of shape \\(1,\\), got 'abc'"),
    ({"encoding": "rotary", "encoding_params": {"base": "x"}}, "base must be a positive finite number, got 'x'"),
    (
        {"encoding": "t5", "encoding_params": {"table": torch.full((1, 32), math.nan)}},
        "table .* must be finite numbers",
    ),
    ({"encoding": "sinusoidal", "encoding_params": {"base": 0.0}}, "base must be a positive finite number, got 0.0"),
]


@pytest.mark.parametrize("changes, message", CONFIGS)
def test_configurations(changes, message):
    with pytest.raises(ValueError, match=message):
        TransformerConfig(**changes)


def _model(**changes):
    return Transformer(TransformerConfig(d_in=2, **changes), torch.Generator().manual_seed(0))


def _x(*shape, dtype=torch.float64):
    return torch.zeros(*shape, dtype=dtype)


def _target(**changes):
    return FixedSparse(**({"readout": lambda z: z[..., 0, :1], "lags": [1, 5]} | changes))


def _target2():
    return _target(inputs=[Interval(), Interval()])


def _filter():
    return EssentiallySparse(lambda z: z[:, :, 0], [lambda s: torch.exp(-s)])


def _pointer(returned, **changes):
    parts = {
        "readout": lambda z: z[:, :, -1],
        "pointers": [lambda z: torch.full(z.shape[:2], returned, dtype=torch.float64)],
        "reach": [4],
        "nesting": 1,
        "inputs": [Interval()],
    }
    return AdaptiveSparse(**(parts | changes))


G = torch.Generator().manual_seed(0)
NAN = torch.full((1, 3, 2), math.nan, dtype=torch.float64)

CALLS = [
    # model
    (
        lambda: TransformerConfig(heads=1, head=2),
        ValueError,
        "unknown configuration keys head; known: d_in",
    ),
    (lambda: _model()([[1.0]]), TypeError, "input must be a torch tensor, got list"),
    (lambda: _model()(_x(1, 3)), ValueError, "input must have shape \\(batch, length, d_in=2\\), got \\(1, 3\\)"),
    (lambda: _model()(_x(1, 3, 4)), ValueError, "d_in=2\\), got \\(1, 3, 4\\)"),
    (lambda: _model()(_x(1, 0, 2)), ValueError, "input must have shape"),
    (
        lambda: _model()(_x(1, 3, 2, dtype=torch.float32)),
        TypeError,
        "input must be float64 \\(or int64 tokens\\), got float32",
    ),
    (lambda: _model()(NAN), ValueError, "input must be finite, got NaN or infinity"),
    (lambda: _model()(torch.tensor([[0, 2]])), ValueError, "integer tokens must lie in 0..1, got 0..2"),
    (
        lambda: _model()(torch.tensor([0, 1])),
        ValueError,
        "integer tokens must have shape \\(batch, length\\), got \\(2,\\)",
    ),
    (
        lambda: _model(encoding="learned", max_length=4)(_x(1, 5, 2)),
        ValueError,
        "has 4 positions; a sequence of 5 needs",
    ),
    (lambda: FeedForward(2, 0), ValueError, "width must be an integer of at least 1, got 0"),
    (lambda: memlib.reproducible(-1), ValueError, "seed must be an integer of at least 0, got -1"),
    (lambda: memlib.reproducible(2**70), ValueError, "seed must be below 2\\*\\*63, got 1180591620717411303424"),
    # encodings
    (lambda: encodings.make("lin", heads=True), ValueError, "heads must be an integer of at least 1, got True"),
    (lambda: encodings.make("rope"), ValueError, "unknown encoding 'rope'; known encodings: lin"),
    (lambda: encodings.make("lin", heads=0), ValueError, "heads must be an integer of at least 1, got 0"),
    (lambda: encodings.kind("rope"), ValueError, "unknown encoding 'rope'"),
    (lambda: encodings.register("lin")(encodings.Lin), ValueError, "the encoding name 'lin' is taken by Lin"),
    (lambda: encodings.register("two words"), ValueError, "must be a Python identifier, got 'two words'"),
    (lambda: encodings.register("number")(int), ValueError, "is no Encoding with a kind in"),
    # kernels
    (lambda: kernels.head_kernel("lin", 0.0, 5), ValueError, "slope must be a positive finite number, got 0.0"),
    (lambda: kernels.head_kernel("lin", math.nan, 5), ValueError, "slope must be a positive finite number, got nan"),
    (lambda: kernels.head_kernel("lin", 1.0, 0), ValueError, "length must be an integer of at least 1, got 0"),
    (
        lambda: kernels.head_kernel("lin", 1.0, 5, "softmax"),
        ValueError,
        "unknown normaliser 'softmax' for a kernel; allowed",
    ),
    (lambda: kernels.head_kernel("log", 1.0, 5), ValueError, "summable over the infinite past only for p > 1, got 1.0"),
    (
        lambda: kernels.head_kernel("t5", 1.0, 5),
        ValueError,
        "'t5' weights have no finite sum .*; use normaliser='window'",
    ),
    (lambda: kernels.head_kernel("learned", 1.0, 5), ValueError, "not a function of the lag: it has no head kernel"),
    (lambda: kernels.head_kernel("rope", 1.0, 5), ValueError, "unknown encoding 'rope'"),
    (lambda: kernels.effective_length(np.array([1.0, -1.0])), ValueError, "finite non-negative numbers, not all zero"),
    (lambda: kernels.window(np.ones(3), 1.0), ValueError, "mass must lie strictly between 0 and 1, got 1.0"),
    (lambda: kernels.exact_window("t5", 1.0), ValueError, "closed forms exist for lin and log, got 't5'"),
    (lambda: kernels.exact_effective_length("t5", 1.0), ValueError, "closed forms exist for lin and log, got 't5'"),
    (lambda: kernels.exact_effective_length("log", 1.0), ValueError, "only for p > 1, got 1.0"),
    (
        lambda: kernels.exact_effective_length("lin", -1.0),
        ValueError,
        "slope must be a positive finite number, got -1.0",
    ),
    (
        lambda: kernels.lag_attention(_x(2, 5), _x(1, 2, 5, 3), "l1"),
        ValueError,
        "unknown normaliser 'l1'; allowed: softmax",
    ),
    (
        lambda: kernels.lag_attention(_x(2, 5), _x(1, 2, 5, 3), path="slow"),
        ValueError,
        "unknown path 'slow'; allowed: auto",
    ),
    (
        lambda: kernels.lag_attention(_x(2, 5), _x(1, 2, 6, 3)),
        ValueError,
        "heads, length = \\(2, 5\\), got \\(1, 2, 6, 3\\)",
    ),
    (lambda: kernels.lag_attention(_x(2, 5), _x(1, 2, 5, 3), query=_x(1, 2, 5)), ValueError, "cancels under softmax"),
    (lambda: kernels.causal_convolution(_x(4), _x(5)), ValueError, "must have the same length, got 4 and 5"),
    (
        lambda: kernels.population_loss(_x(4), _x(2, 5), _x(2)),
        ValueError,
        "shapes must be \\(length,\\), \\(heads, length\\)",
    ),
    (lambda: kernels.head_kernel("lin", True, 5), ValueError, "slope must be a positive finite number, got True"),
    (lambda: kernels.head_kernel("log", 2.0, 1, "window"), ValueError, "a log head sees nothing in a window of 1"),
    (lambda: kernels.exact_window("log", 1.001), ValueError, "at slope 1.001 the window exceeds 2\\*\\*1000 lags"),
    (lambda: kernels.normalise(_x(2, 2), "l1"), ValueError, "unknown normaliser 'l1'; allowed: softmax, sink, none"),
    (
        lambda: kernels.lag_attention(_x(2, 5).half(), _x(1, 2, 5, 3).half()),
        TypeError,
        "must both be float64 or float32",
    ),
    (lambda: kernels.lag_attention(_x(2, 5), _x(1, 2, 5, 3).float()), TypeError, "got torch.float64, torch.float32"),
    (
        lambda: kernels.lag_attention(_x(2, 5), _x(1, 2, 5, 3), "sink", _x(2, 5)),
        ValueError,
        "query must have shape .* got",
    ),
    # targets
    (lambda: _target(d_out=0), ValueError, "d_out must be an integer of at least 1, got 0"),
    (lambda: _target(readout=None), TypeError, "readout must be a function, got NoneType"),
    (lambda: _target(lags=3), ValueError, "lags must be a sequence of integers, got 3"),
    (
        lambda: _target(inputs=Interval()),
        ValueError,
        "inputs must be a non-empty sequence of Interval and Finite channels",
    ),
    (lambda: Finite(3), ValueError, "a finite alphabet needs distinct finite values, got 3"),
    (lambda: Interval("a", 1), ValueError, "low must be a finite number, got 'a'"),
    (lambda: _target().sample(True, 9, G), ValueError, "batch must be an integer of at least 1, got True"),
    (lambda: shift(_x(1, 5, 1), -1), ValueError, "lag must be an integer of at least 0, got -1"),
    (lambda: _pointer(1.0, nesting=True), ValueError, "nesting must be an integer of at least 0, got True"),
    (lambda: _pointer(-1.0, reach=[10])(_x(1, 5, 1)), ValueError, "pointer 1 left 1..10: it returned -1..-1"),
    (lambda: _filter().tail(-1), ValueError, "length must be an integer of at least 0, got -1"),
    # training
    (lambda: relative_error(_model(d_out=2), _target2(), generator=G), ValueError, "must have the same shape"),
    (
        lambda: relative_error(_model(), _target2(), generator=0),
        TypeError,
        "relative_error needs an explicit torch.Generator",
    ),
    (lambda: _target(lags=[-1]), ValueError, "lag .* must be an integer of at least 1, got -1"),
    (
        lambda: _target(lags=[0]),
        ValueError,
        "lag \\(x_t itself is always read\\) must be an integer of at least 1, got 0",
    ),
    (lambda: _target(lags=[2, 2]), ValueError, "lags must be distinct, got \\(2, 2\\)"),
    (lambda: _target(inputs=[]), ValueError, "inputs must be a non-empty sequence of Interval and Finite channels"),
    (lambda: _target(readout=lambda z: z)(_x(1, 9, 1)), ValueError, "the readout must return shape \\(1, 9, 1\\)"),
    (lambda: _target().sample(2, 5, G), ValueError, "length must exceed the longest lag, 5, got 5"),
    (lambda: _target().sample(0, 9, G), ValueError, "batch must be an integer of at least 1, got 0"),
    (lambda: _target().sample(2, 9, 0), TypeError, "sample needs an explicit torch.Generator, got int"),
    (lambda: _target()(_x(1, 9, 2)), ValueError, "shape \\(batch, length, d_in=1\\), got \\(1, 9, 2\\)"),
    (lambda: _target()(NAN[..., :1]), ValueError, "input must be finite, got NaN or infinity"),
    (lambda: _target()(_x(1, 9, 1, dtype=torch.float32)), TypeError, "input must be float64, got float32"),
    (lambda: Interval(1, 1), ValueError, "an interval needs finite low < high, got 1, 1"),
    (lambda: Finite([1, 1]), ValueError, "a finite alphabet needs distinct finite values"),
    (lambda: _pointer(1.0, nesting=2), ValueError, "nesting must lie in 0..1, the number of pointers, got 2"),
    (lambda: _pointer(1.0, reach=[1, 2]), ValueError, "reach needs one entry per pointer: 1 pointers, 2 entries"),
    (lambda: _pointer(1.0, reach=[-3]), ValueError, "pointer's reach .* must be an integer of at least 1, got -3"),
    (lambda: _pointer(5.0)(_x(1, 9, 1)), ValueError, "pointer 1 left 1..4: it returned 5..5"),
    (lambda: _pointer(1.5)(_x(1, 9, 1)), ValueError, "pointer 1 must return whole numbers, got 1.5"),
    (lambda: EssentiallySparse(lambda z: z, []), ValueError, "needs at least one kernel"),
    (lambda: EssentiallySparse(lambda z: z, [lambda s: 1 / s])(_x(1, 9, 1)), ValueError, "as many finite numbers"),
]


@pytest.mark.parametrize("call, error, message", CALLS)
def test_calls(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_numbers_of_numpy_are_numbers():
    """What is valid is not refused for its type."""
    config = TransformerConfig(heads=np.int64(2), encoding_params={"slopes": np.array([0.5, 1.0])})
    assert config == TransformerConfig(heads=2, encoding_params={"slopes": [0.5, 1.0]})
    assert hash(config) == hash(TransformerConfig(heads=2, encoding_params={"slopes": (0.5, 1.0)}))
    assert FixedSparse(lambda z: z[..., 0, :1], lags=[np.int64(3)]).burn_in == 3
    assert kernels.head_kernel("lin", np.float32(0.5), np.int64(4)).shape == (4,)


def test_a_configuration_does_not_change_with_its_arguments():
    slopes = {"slopes": [0.5]}
    config = TransformerConfig(encoding_params=slopes)
    slopes["slopes"][0] = 7.0
    assert config.encoding_params == {"slopes": [0.5]}
