"""Encodings against hand-computed numbers and against the independent implementations in a released package."""

import math

import pytest
import torch
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.llama.configuration_llama import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb
from transformers.models.t5.configuration_t5 import T5Config
from transformers.models.t5.modeling_t5 import T5Attention

from memlib import encodings
from memlib.kernels import normalise, toeplitz
from memlib.model import Transformer, TransformerConfig

ALL = ("lin", "log", "alibi", "kerple_log", "kerple_power", "t5", "rotary", "sinusoidal", "learned", "none")


def test_the_ten_encodings_are_there():
    assert encodings.names()[:10] == ALL
    assert [encodings.kind(n) for n in ALL] == ["additive"] * 6 + ["multiplicative"] + ["absolute"] * 2 + ["none"]


# --------------------------------------------------------------------------------------------- hand-computed numbers


@pytest.mark.parametrize("name, params, expected", [
    ("lin", {"slopes": [0.5]}, [0, -0.5, -1.0, -1.5, -2.0]),
    ("log", {"slopes": [2.0]}, [-math.inf, 0, -2 * math.log(2), -2 * math.log(3), -4 * math.log(2)]),
    ("alibi", {}, [0, -2**-8, -2 * 2**-8, -3 * 2**-8, -4 * 2**-8]),
    ("kerple_log", {"slopes": [2.0], "scales": [3.0]}, [0, *(-2 * math.log(1 + 3 * z) for z in range(1, 5))]),
    ("kerple_power", {"slopes": [3.0], "powers": [0.5]}, [0, -3, -3 * math.sqrt(2), -3 * math.sqrt(3), -6]),
    ("t5", {"buckets": 4, "max_distance": 4, "table": torch.tensor([[1.0, 2.0, 3.0, 4.0]])}, [1, 2, 3, 4, 4]),
])  # fmt: skip
def test_additive_by_hand(name, params, expected):
    got = encodings.make(name, heads=1, **params).log_weights(5)[0]
    torch.testing.assert_close(got, torch.tensor(expected, dtype=torch.float64), rtol=1e-14, atol=1e-14)


def test_t5_buckets_by_hand():
    """32 buckets to distance 128: one lag each to 15; bucket 16 + k starts at the least z >= 16 * 8^(k/16)."""
    t5 = encodings.make("t5")
    lags = {
        0: 0,
        1: 1,
        15: 15,
        16: 16,
        18: 16,
        19: 17,
        20: 17,
        21: 18,
        32: 21,
        64: 26,
        112: 30,
        113: 31,
        127: 31,
        128: 31,
        9999: 31,
    }
    for k in range(1, 16):
        start = math.ceil(16 * 8 ** (k / 16))
        lags |= {start - 1: 15 + k, start: 16 + k}
    assert t5.bucket(torch.tensor(list(lags))).tolist() == list(lags.values())


def test_t5_exact_edges_do_not_round():
    """With 8 buckets to distance 64 the edges 4 * 2^k are integers, where a floating-point logarithm may fall short."""
    assert encodings.make("t5", buckets=8, max_distance=64).edges.tolist() == [1, 2, 3, 4, 8, 16, 32]


@pytest.mark.parametrize("heads, expected", [
    (1, [2**-8]), (2, [2**-4, 2**-8]), (4, [2**-2, 2**-4, 2**-6, 2**-8]),
    (3, [2**-4, 2**-8, 2**-2]), (6, [2**-2, 2**-4, 2**-6, 2**-8, 2**-1, 2**-3]),
])  # fmt: skip
def test_alibi_slopes_by_hand(heads, expected):
    assert encodings.alibi_slopes(heads) == pytest.approx(expected, rel=1e-15)


def test_rotary_by_hand():
    """d_head = 4: pair (0, 2) turns by t, pair (1, 3) by t / 100."""
    rotary = encodings.make("rotary", d_head=4)
    x = torch.tensor([[1.0, 0, 0, 0], [1, 0, 0, 0], [0, 1, 0, 0]], dtype=torch.float64)
    expected = [[1, 0, 0, 0], [math.cos(1), 0, math.sin(1), 0], [0, math.cos(0.02), 0, math.sin(0.02)]]
    torch.testing.assert_close(rotary.rotate(x), torch.tensor(expected, dtype=torch.float64))


def test_rotary_depends_on_the_lag_alone():
    g = torch.Generator().manual_seed(0)
    rotary = encodings.make("rotary", d_head=8)
    q, k = (torch.randn(8, dtype=torch.float64, generator=g).expand(12, 8) for _ in range(2))
    scores = rotary.rotate(q) @ rotary.rotate(k).T
    for lag in range(-5, 6):
        diagonal = scores.diagonal(-lag)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal), rtol=1e-12, atol=1e-12)


def test_sinusoidal_by_hand():
    p = encodings.make("sinusoidal", d_model=4).positions(3)
    expected = [[math.sin(t), math.cos(t), math.sin(t / 100), math.cos(t / 100)] for t in range(3)]
    torch.testing.assert_close(p, torch.tensor(expected, dtype=torch.float64))


# ------------------------------------------------------------------------------------------ a released package


def _same_attention(ours, theirs):
    """Equal up to the row shift that softmax removes."""
    causal = torch.ones(ours.shape[-2:], dtype=torch.bool).tril()
    theirs = theirs.to(torch.float64).masked_fill(~causal, -math.inf)
    torch.testing.assert_close(normalise(ours, "softmax"), normalise(theirs, "softmax"), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("heads", [1, 2, 3, 4, 6, 8, 12, 20])
def test_alibi_agrees_with_bloom(heads):
    theirs = build_alibi_tensor(torch.ones(1, 40), heads, torch.float32).reshape(heads, 1, 40).expand(-1, 40, -1)
    _same_attention(toeplitz(encodings.make("alibi", heads=heads).log_weights(40)), theirs)


@pytest.mark.parametrize("buckets, max_distance", [(32, 128), (16, 100), (8, 50), (32, 300)])
def test_t5_agrees_with_t5(buckets, max_distance):
    lags = torch.arange(1000)
    theirs = T5Attention._relative_position_bucket(
        -lags, bidirectional=False, num_buckets=buckets, max_distance=max_distance
    )
    ours = encodings.make("t5", buckets=buckets, max_distance=max_distance)
    assert ours.bucket(lags).tolist() == theirs.tolist()


def test_t5_bias_agrees_with_t5():
    config = T5Config(d_model=8, d_kv=4, num_heads=2, is_decoder=True)
    layer = T5Attention(config, has_relative_attention_bias=True, layer_idx=0)
    table = layer.relative_attention_bias.weight.detach().T.double()
    ours = toeplitz(encodings.make("t5", heads=2, table=table).log_weights(50))
    _same_attention(ours, layer.compute_bias(50, 50)[0].detach())


def test_rotary_agrees_with_llama():
    g = torch.Generator().manual_seed(0)
    config = LlamaConfig(hidden_size=32, num_attention_heads=2, head_dim=16, max_position_embeddings=64)
    x = torch.randn(1, 2, 40, 16, dtype=torch.float64, generator=g)
    cos, sin = LlamaRotaryEmbedding(config)(x, torch.arange(40)[None])
    theirs, _ = apply_rotary_pos_emb(x, x, cos, sin)
    torch.testing.assert_close(encodings.make("rotary", d_head=16).rotate(x), theirs, rtol=1e-5, atol=1e-5)


# ------------------------------------------------------------------------------------- parameters do what they say

PARAMETERS = [
    ("lin", {"slopes": [0.3, 0.7]}), ("log", {"slopes": [1.1, 3.0]}), ("alibi", {"slopes": [0.3, 0.7]}),
    ("kerple_log", {"slopes": [1.1, 3.0]}), ("kerple_log", {"scales": [0.2, 5.0]}),
    ("kerple_power", {"slopes": [0.3, 0.7]}), ("kerple_power", {"powers": [0.2, 1.5]}),
    ("t5", {"buckets": 8}), ("t5", {"max_distance": 20}), ("t5", {"table": torch.linspace(0, 1, 64).reshape(2, 32)}),
    ("rotary", {"base": 100.0}), ("rotary", {"frequencies": [0.5, 0.25]}), ("sinusoidal", {"base": 100.0}),
]  # fmt: skip


def _output(name, params):
    config = TransformerConfig(encoding=name, encoding_params=params, d_model=8, heads=2, width=4)
    x = torch.linspace(-1, 1, 40, dtype=torch.float64).sin()[None, :, None]
    return Transformer(config, torch.Generator().manual_seed(0))(x)


@pytest.mark.parametrize("name, params", PARAMETERS)
def test_every_parameter_changes_the_output(name, params):
    assert (_output(name, params) - _output(name, {})).abs().max() > 1e-6


def test_every_parameter_is_in_the_table():
    import inspect

    for name in ALL:
        allowed = set(inspect.signature(encodings._REGISTRY[name].__init__).parameters) - {"self", "sizes"}
        assert allowed == {key for n, params in PARAMETERS if n == name for key in params}


@pytest.mark.parametrize("name", [n for n in ALL if n not in ("alibi", "rotary", "sinusoidal", "none")])
def test_every_learned_parameter_gets_a_gradient(name):
    config = TransformerConfig(encoding=name, d_model=8, heads=2, width=4, max_length=150)
    model = Transformer(config, torch.Generator().manual_seed(0))
    x = torch.linspace(-1, 1, 150, dtype=torch.float64).sin()[None, :, None]
    model(x).square().sum().backward()
    learned = {k: p for k, p in model.named_parameters() if "encoding" in k or "position" in k}
    assert learned
    for parameter in learned.values():
        assert bool((parameter.grad != 0).all())


@pytest.mark.parametrize("y", [1e-6, 0.1, 1.0, 20.0, 500.0])
def test_softplus_inverse(y):
    y = torch.tensor(y, dtype=torch.float64)
    torch.testing.assert_close(encodings.softplus(encodings.softplus_inverse(y)), y, rtol=1e-13, atol=0)


def test_users_can_register_their_own_and_run_the_cell_again():
    def cell():
        @encodings.register("last_two")
        class LastTwo(encodings.Additive):
            def log_weights(self, length):
                lags = torch.arange(length)
                return torch.where(lags < 2, 0.0, -math.inf).to(self.sizes.dtype).expand(self.sizes.heads, -1)

    try:
        cell()
        cell()
        model = Transformer(TransformerConfig(encoding="last_two", attention="dp_free", heads=2))
        weights = model.attention_maps(torch.zeros(1, 4, 1, dtype=torch.float64))[0][0, 0]
        assert weights[3].tolist() == [0, 0, 0.5, 0.5]
    finally:
        del encodings._REGISTRY["last_two"]
