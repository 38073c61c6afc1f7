"""One Transformer for everything: definitions against loops, causality, saving."""

import math

import pytest
import torch

from memlib import encodings
from memlib.model import VALID_COMBINATIONS, FeedForward, Transformer, TransformerConfig

COMBINATIONS = [
    (row["attention"], name, normaliser)
    for row in VALID_COMBINATIONS
    for name in ("lin", "log", "alibi", "kerple_log", "kerple_power", "t5", "rotary", "sinusoidal", "learned", "none")
    if encodings.kind(name) in row["encodings"]
    for normaliser in row["normalisers"]
]


def _model(seed=0, **changes):
    sizes = {"d_in": 3, "d_out": 2, "d_model": 8, "layers": 2, "heads": 2, "width": 5} | changes
    model = Transformer(TransformerConfig(**sizes), torch.Generator().manual_seed(seed))
    with torch.no_grad():
        model.embed.weight *= 0.3  # plain exponentials (normaliser "none") grow fast
    return model


def _x(length=12, batch=2, d=3, seed=1):
    return 2 * torch.rand(batch, length, d, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) - 1


def _reference(model, x):
    """The architecture written as loops over positions, heads and tokens, from the formulas of the chapter."""
    c = model.config
    state = x @ model.embed.weight.T + model.embed.bias
    if model.position is not None:
        state = state + model.position.positions(x.shape[1])
    for layer in model.layers:
        a = layer.attention
        new = state.clone()
        for h in range(c.heads):
            rows = slice(h * c.d_head, (h + 1) * c.d_head)
            value = state @ a.value.weight[rows].T
            bias = a.encoding.log_weights(x.shape[1])[h] if a.kind == "additive" else torch.zeros(x.shape[1])
            if c.attention in ("dp", "linear"):
                q, k = state @ a.query.weight[rows].T, state @ a.key.weight[rows].T
                if a.kind == "multiplicative":
                    q, k = a.encoding.rotate(q), a.encoding.rotate(k)
            for b in range(len(x)):
                for t in range(x.shape[1]):
                    raw = []
                    for s in range(t + 1):
                        weight = math.exp(bias[t - s])
                        if c.attention == "dp":
                            weight *= math.exp(q[b, t] @ k[b, s])
                        if c.attention == "linear":
                            f = [torch.where(z > 0, z + 1, z.exp()) for z in (q[b, t], k[b, s])]
                            weight *= float(f[0] @ f[1])
                        if c.attention == "tmx":
                            weight *= math.exp(a.query.weight[h] @ state[b, t])
                        raw.append(weight)
                    total = {"softmax": sum(raw), "sink": 1 + sum(raw), "none": 1.0}[c.normaliser]
                    if total:
                        mixed = sum(w / total * value[b, s] for s, w in enumerate(raw))
                        new[b, t] += a.out.weight[:, rows] @ mixed
        state = new
        hidden = torch.clamp(state @ layer.ffn.hidden.weight.T + layer.ffn.hidden.bias, min=0)
        state = state + hidden @ layer.ffn.out.weight.T
    return state @ model.readout.weight.T + model.readout.bias


@pytest.mark.parametrize("attention, encoding, normaliser", COMBINATIONS)
def test_model_is_the_formulas(attention, encoding, normaliser):
    model = _model(attention=attention, encoding=encoding, normaliser=normaliser)
    x = _x(6)
    with torch.no_grad():
        torch.testing.assert_close(model(x), _reference(model, x), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    "norm, norm_kind", [("none", "layer"), ("pre", "layer"), ("pre", "rms"), ("post", "layer"), ("post", "rms")]
)
@pytest.mark.parametrize("attention, encoding", [("dp", "t5"), ("dp_free", "log"), ("dp", "rotary")])
def test_causal_and_differentiable(attention, encoding, norm, norm_kind):
    model = _model(attention=attention, encoding=encoding, norm=norm, norm_kind=norm_kind)
    x = _x(150)
    y = model(x)
    changed = x.clone()
    changed[:, 100:] *= -1
    torch.testing.assert_close(model(changed)[:, :100], y[:, :100], rtol=1e-9, atol=1e-9)
    assert (model(changed)[:, 100:] - y[:, 100:]).abs().max() > 1e-3
    y.sum().backward()
    assert all(bool(torch.isfinite(p.grad).all()) for p in model.parameters())


def test_norms_normalise():
    x = _x()
    post = _model(norm="post", norm_kind="rms").residual_stream(x)[-1]
    torch.testing.assert_close(post.square().mean(-1), torch.ones(2, 12).double(), rtol=1e-4, atol=1e-4)
    layer = _model(norm="post", norm_kind="layer").residual_stream(x)[-1]
    torch.testing.assert_close(layer.mean(-1), torch.zeros(2, 12).double(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("attention, encoding, normaliser", COMBINATIONS)
def test_attention_maps_are_what_the_model_uses(attention, encoding, normaliser):
    model = _model(attention=attention, encoding=encoding, normaliser=normaliser)
    x = _x(100)
    with torch.no_grad():
        state = model.residual_stream(x)[0]
        a, weights = model.layers[0].attention, model.attention_maps(x)[0]
        mixed = weights @ a._split(a.value(state))
        expected = a.out(mixed.transpose(1, 2).flatten(2))
        torch.testing.assert_close(a(state), expected, rtol=1e-8, atol=1e-8)
    assert bool((weights.triu(1) == 0).all())


def _attention_output(model, x):
    """What the first layer's attention adds to the residual stream."""
    with torch.no_grad():
        return model.layers[0].attention(model.residual_stream(x)[0])


@pytest.mark.parametrize("encoding", ["lin", "log", "t5", "none"])
def test_tmx_is_dp_free_attention_behind_gates(encoding):
    r"""Without normaliser head $h$ of TMX is the DP-free head times $e^{w_h\cdot x_t}$: no key, no dot product."""
    tmx = _model(attention="tmx", encoding=encoding, normaliser="none", layers=1)
    free = _model(attention="dp_free", encoding=encoding, normaliser="none", layers=1)
    free.load_state_dict({k: v for k, v in tmx.state_dict().items() if not k.endswith("attention.query.weight")})
    x = _x(100)
    with torch.no_grad():
        state, a = tmx.residual_stream(x)[0], free.layers[0].attention
        gates = (state @ tmx.layers[0].attention.query.weight.T).exp()
        heads = a.weights(state) @ a._split(a.value(state))
        expected = a.out((gates.transpose(1, 2)[..., None] * heads).transpose(1, 2).flatten(2))
    torch.testing.assert_close(_attention_output(tmx, x), expected, rtol=1e-9, atol=1e-9)
    assert (_attention_output(tmx, x) - _attention_output(free, x)).abs().max() > 1e-2


@pytest.mark.parametrize("normaliser", ["sink", "none"])
def test_tmx_is_dp_with_a_constant_key(normaliser):
    """A dot product whose key map returns the same vector for every token is TMX, whatever the encoding by lag."""
    tmx = _model(attention="tmx", encoding="t5", normaliser=normaliser, layers=1, d_head=1, d_in=3)
    dp = _model(attention="dp", encoding="t5", normaliser=normaliser, layers=1, d_head=1, d_in=3)
    with torch.no_grad():
        for model in (tmx, dp):  # the last coordinate of the residual stream is the constant one
            model.embed.weight[-1] = 0.0
            model.embed.bias[-1] = 1.0
        dp.layers[0].attention.key.weight.zero_()
        dp.layers[0].attention.key.weight[:, -1] = 1.0
    state = {k: v for k, v in tmx.state_dict().items()}
    dp.load_state_dict({**state, "layers.0.attention.key.weight": dp.layers[0].attention.key.weight.detach()})
    x = _x(100)
    with torch.no_grad():
        torch.testing.assert_close(tmx(x), dp(x), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("attention", ["dp", "dp_free", "tmx", "linear"])
@pytest.mark.parametrize("normaliser", ["softmax", "sink", "none"])
def test_a_position_without_admissible_past_adds_nothing(attention, normaliser):
    """A log head does not see its own position, so the first token reads nothing, and later ones something."""
    if attention == "tmx" and normaliser == "softmax":
        with pytest.raises(ValueError, match="allowed normalisers: sink, none"):
            _model(attention=attention, encoding="log", normaliser=normaliser)
        return
    added = _attention_output(_model(attention=attention, encoding="log", normaliser=normaliser), _x(100))
    assert bool((added[:, 0] == 0).all())
    assert bool((added[:, 1:].abs().amax(-1) > 0).all())


def test_integer_tokens_are_one_hot():
    model = _model()
    tokens = torch.tensor([[0, 2, 1, 1]])
    torch.testing.assert_close(model(tokens), model(torch.eye(3, dtype=torch.float64)[tokens]))


def test_width_zero_is_attention_alone():
    model = _model(width=0)
    assert all(layer.ffn is None for layer in model.layers)
    assert model(_x()).shape == (2, 12, 2)


def test_heads_need_not_divide_with_d_head_given():
    assert _model(heads=3, d_head=5)(_x()).shape == (2, 12, 2)


def test_ffn_by_hand():
    ffn = FeedForward(1, 2, 1)
    with torch.no_grad():
        ffn.hidden.weight.copy_(torch.tensor([[1.0], [-1.0]]))
        ffn.hidden.bias.zero_()
        ffn.out.weight.copy_(torch.tensor([[1.0, 1.0]]))
    assert ffn(torch.tensor([[-2.0], [3.0]], dtype=torch.float64)).flatten().tolist() == [2, 3]


def test_the_same_generator_gives_the_same_model():
    x = _x()
    assert torch.equal(_model(3)(x), _model(3)(x))
    assert not torch.equal(_model(3)(x), _model(4)(x))


def test_initialisation_does_not_touch_the_global_generator():
    before = torch.random.get_rng_state()
    _model(encoding="learned")
    _model(encoding="t5")
    assert torch.equal(before, torch.random.get_rng_state())


SAVED = [("log", {"slopes": [1.5, 2.0]}), ("t5", {}), ("learned", {}), ("t5", {"table": torch.zeros(2, 32)})]


@pytest.mark.parametrize("encoding, params", [*SAVED, ("rotary", {"base": 50.0})])
def test_save_and_load(tmp_path, encoding, params):
    model = _model(encoding=encoding, encoding_params=params, norm="pre")
    path = tmp_path / "model.safetensors"
    model.save(path)
    again = Transformer.load(path)
    assert torch.equal(again(_x()), model(_x()))
    assert again.config.encoding == encoding
    assert [p.name for p in tmp_path.iterdir()] == ["model.safetensors"]


def test_a_file_cut_in_half_says_so_and_is_kept(tmp_path):
    path = tmp_path / "model.safetensors"
    _model().save(path)
    whole = path.read_bytes()
    for size in (0, 5, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(ValueError, match="not a complete model file"):
            Transformer.load(path)
        assert path.read_bytes() == whole[:size]
