"""Nested look-ups: the targets by hand, what doubling can and cannot do, and what a run returns."""

import itertools

import pytest
import torch

import memlib
from memlib import experiments
from memlib.experiments import nested_lookups
from memlib.experiments.nested_lookups import FIXED_LAG, LENGTH, SYMBOLS, Lookups, reading, run, trained
from memlib.model import Transformer, TransformerConfig
from memlib.targets import AdaptiveSparse

TINY = {"task": "keyed", "nesting": 2, "layers": 2, "encoding": "rotary", "seed": 0, "steps": 3}


# ---------------------------------------------------------------- the targets


def followed(values, symbols, task, nesting, t):
    """The definition as a loop over plain lists: the lags read from position t, and the value at the last."""
    if nesting == 0:
        return [FIXED_LAG], values[t - FIXED_LAG]
    lags, total, here = [], 0, t
    for _ in range(nesting):
        total += symbols[here]
        if task == "plain":
            lag = (lags[-1] if lags else 0) + 1 + symbols[here]
        elif task == "keyed":
            lag = 1 + symbols[here]
        else:
            lag = 1 + total % 8
        lags.append(lag)
        here = t - lag
    return lags, values[here]


@pytest.mark.parametrize(("task", "nesting"), list(itertools.product(SYMBOLS, range(4))))
def test_the_target_is_the_definition(task, nesting):
    target = Lookups(task, nesting)
    x, y = target.sample(3, LENGTH, memlib.reproducible(nesting))
    values, symbols = x[..., 0].tolist(), x[..., 1:].argmax(-1).tolist()
    lags = target.lags(x)
    for b, t in itertools.product(range(3), range(target.burn_in, LENGTH)):
        wanted, value = followed(values[b], symbols[b], task, nesting, t)
        assert lags[b, t].tolist() == wanted
        assert y[b, t, 0] == value
    assert isinstance(target, AdaptiveSparse) and target.nesting == nesting
    assert target.d_in == 1 + SYMBOLS[task] and target.d_out == 1


@pytest.mark.parametrize("task", SYMBOLS)
def test_tokens_are_a_value_and_one_symbol(task):
    x, _ = Lookups(task, 1).sample(200, LENGTH, memlib.reproducible(0))
    assert torch.equal(x[..., 0].abs(), torch.ones(200, LENGTH, dtype=torch.float64))
    assert torch.equal(x[..., 1:].sum(-1), torch.ones(200, LENGTH, dtype=torch.float64))
    share = x.mean((0, 1))
    assert abs(float(share[0])) < 0.05
    assert share[1:].tolist() == pytest.approx([1 / SYMBOLS[task]] * SYMBOLS[task], abs=0.02)


def test_the_first_pointer_is_affine_in_the_token():
    """So the first layer of Theorem a:thm-nested is not needed: K layers suffice."""
    for task, symbols in SYMBOLS.items():
        target = Lookups(task, 1)
        x, _ = target.sample(4, LENGTH, memlib.reproducible(1))
        affine = 1 + x[..., 1:] @ torch.arange(symbols, dtype=torch.float64)
        assert torch.equal(target.lags(x)[..., 0].double(), affine)


# ---------------------------------------------------------------- doubling


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_plain_chasing_can_double(layers):
    """L rounds of P_t <- P_t + P_{t-P_t}, the value carried along, follow 2^L - 1 pointers (remark a:rem-doubling)."""
    target = Lookups("plain", 2**layers - 1)
    length = 2 * target.burn_in + 20
    x, y = target.sample(5, length, memlib.reproducible(layers))
    pointer = 1 + x[..., 1:].argmax(-1)  # knows one hop
    value = x[..., 0]  # has made none
    for _ in range(layers):
        source = (torch.arange(length) - pointer).clamp(min=0)
        pointer, value = pointer + pointer.gather(1, source), value.gather(1, source)
    assert torch.equal(value[:, target.burn_in :], y[:, target.burn_in :, 0])
    one_more = Lookups("plain", 2**layers)(x)[:, 2 * target.burn_in :, 0]
    assert not torch.equal(value[:, 2 * target.burn_in :], one_more)


def askers(target, x):
    """Pairs of positions of one sequence whose first pointer leads to the same token, in the order (early, late)."""
    first = torch.arange(x.shape[1]) - target.lags(x)[..., 0]
    for b, s in itertools.product(range(len(x)), range(target.burn_in, x.shape[1])):
        asking = [t for t in range(target.burn_in, x.shape[1]) if first[b, t] == s]
        yield from ((b, *pair) for pair in itertools.combinations(asking, 2))


@pytest.mark.parametrize("nesting", [2, 3])
def test_plain_answers_belong_to_the_token_keyed_answers_to_the_asker(nesting):
    """Plain: all who point to a token get the same answer, so it can be prepared there. Keyed: they do not."""
    differing = {}
    for task in ("plain", "keyed"):
        target = Lookups(task, nesting)
        x, y = target.sample(64, 40, memlib.reproducible(0))
        pairs = list(askers(target, x))
        assert len(pairs) > 200
        differing[task] = sum(float(y[b, early, 0] != y[b, late, 0]) for b, early, late in pairs) / len(pairs)
    assert differing["plain"] == 0
    assert differing["keyed"] == pytest.approx(0.5, abs=0.1)  # two tokens drawn independently


def test_keyed_answers_can_lie_after_the_token_that_names_them():
    """A witness: two sequences equal up to and including the first token read, with the same symbols, and different
    answers. All states at that token are equal in any causal model, so no state there can carry the answer.
    """
    target = Lookups("keyed", 2)
    symbols = torch.zeros(1, LENGTH, dtype=torch.long)
    t, first, second = 20, 6, 3
    symbols[0, t], symbols[0, t - first] = first - 1, second - 1
    x = torch.cat([torch.ones(1, LENGTH, 1), torch.nn.functional.one_hot(symbols, 8)], dim=-1).double()
    other = x.clone()
    other[0, t - second, 0] = -1.0
    s = t - first
    assert torch.equal(x[:, : s + 1], other[:, : s + 1]) and torch.equal(x[..., 1:], other[..., 1:])
    assert target.lags(x)[0, t].tolist() == target.lags(other)[0, t].tolist() == [first, second]
    assert target(x)[0, t, 0] == 1 and target(other)[0, t, 0] == -1
    config = TransformerConfig(d_in=9, d_model=16, layers=3, encoding="rotary")
    model = Transformer(config, memlib.reproducible(0))
    with torch.no_grad():
        states = [torch.stack(model.residual_stream(z))[:, 0, s] for z in (x, other)]
    assert torch.equal(*states)


def test_sums_that_do_not_wrap_are_plain_chasing():
    """t_2 = t_1 + k exactly where the sum of the two keys stays below 8: half a doubling."""
    target = Lookups("summed", 2)
    x, _ = target.sample(500, LENGTH, memlib.reproducible(0))
    lags = target.lags(x)[:, target.burn_in :]
    key = x[..., 1:].argmax(-1)
    source = torch.arange(target.burn_in, LENGTH) - lags[..., 0]
    second = key.gather(1, source)
    wraps = key[:, target.burn_in :] + second >= 8
    assert torch.equal(lags[..., 1] == lags[..., 0] + second, ~wraps)
    assert float(wraps.double().mean()) == pytest.approx(28 / 64, abs=0.03)


# ---------------------------------------------------------------- runs


def test_results_repeat_and_mean_what_they_say():
    first, again = run(**TINY), run(**TINY)
    assert first == again
    assert 0.35 < first["wrong"] < 0.65 and 0.8 < first["error"] < 2.5  # three steps teach little
    assert first != run(**{**TINY, "seed": 1})
    model, target = trained(**TINY)
    x, y = target.sample(256, LENGTH, memlib.reproducible(1000))
    with torch.no_grad():
        guess = model(x)
    rest = slice(target.burn_in, None)
    assert first["error"] == pytest.approx(float((guess - y)[:, rest].square().mean() / y[:, rest].var(correction=0)))
    assert first["wrong"] == pytest.approx(float((guess[:, rest].sign() != y[:, rest]).double().mean()))
    d, m = 32, 64
    assert first["parameters"] == d * 10 + 2 * (4 * d * d + m * (d + 1) + m * d) + d + 1


def test_one_look_up_is_learned_by_one_rotary_head():
    found = run(**{**TINY, "nesting": 1, "layers": 1, "steps": 500})
    assert found["error"] < 0.01 and found["wrong"] == 0


def test_a_curriculum_adds_look_ups_and_layers_together(monkeypatch):
    """Stage k trains k look-ups; layers above the k-th are silent and frozen until they join, as they began."""
    stages = []

    def spy(model, target, *, steps, **options):
        on = [all(p.requires_grad for p in layer.parameters()) for layer in model.layers]
        off = [not any(p.requires_grad for p in layer.parameters()) for layer in model.layers]
        loud = [all(bool(part.out.weight.any()) for part in (layer.attention, layer.ffn)) for layer in model.layers]
        assert loud == on == [not frozen for frozen in off]
        stages.append((target.nesting, steps, sum(on)))

    monkeypatch.setattr(nested_lookups, "fit", spy)
    trained(**{**TINY, "nesting": 3, "layers": 4, "steps": 9, "curriculum": True})
    assert stages == [(1, 3, 1), (2, 3, 2), (3, 3, 4)]
    stages.clear()
    grown, _ = trained(**{**TINY, "nesting": 3, "layers": 2, "steps": 9, "curriculum": True})
    assert stages == [(1, 3, 1), (2, 3, 2), (3, 3, 2)]
    fresh = Transformer(grown.config, memlib.reproducible(0))  # nothing was trained: the weights are the first ones
    assert all(torch.equal(a, b) for a, b in zip(grown.parameters(), fresh.parameters(), strict=True))
    stages.clear()
    trained(**{**TINY, "nesting": 3, "steps": 9})
    assert stages == [(3, 9, 2)]


def test_reading_is_the_attention_at_the_pointers():
    """Equal weights: position t gives 1 / (t + 1) to each token. A head that sees one lag gives it everything."""
    target = Lookups("keyed", 2)
    x, _ = target.sample(4, LENGTH, memlib.reproducible(0))
    config = TransformerConfig(d_in=9, d_model=16, layers=2, heads=2, encoding="t5", attention="dp_free",
                               encoding_params={"table": torch.zeros(2, 32).tolist()})  # fmt: skip
    equal = sum(1 / (t + 1) for t in range(target.burn_in, LENGTH)) / (LENGTH - target.burn_in)
    found = reading(Transformer(config, memlib.reproducible(0)), target, x)
    assert found.shape == (2, 2) and found.flatten().tolist() == pytest.approx([equal] * 4)
    table = torch.full((2, 32), -50.0)
    table[0, 3] = table[1, 5] = 0.0  # one head at lag 3, one at lag 5
    config = TransformerConfig(d_in=9, d_model=16, heads=2, encoding="t5", attention="dp_free",
                               encoding_params={"table": table.tolist()})  # fmt: skip
    lags = target.lags(x)[:, target.burn_in :]
    wanted = ((lags == 3) | (lags == 5)).double().mean((0, 1)).tolist()
    assert reading(Transformer(config, memlib.reproducible(0)), target, x)[0].tolist() == pytest.approx(wanted)


def test_grids():
    points = {scale: nested_lookups.grid(scale) for scale in experiments.scales("nested_lookups")}
    assert all(point in points["stored"] for point in points["book"])
    for listed in points.values():
        assert len({tuple(point.items()) for point in listed}) == len(listed)
    wanted = itertools.product(("plain", "keyed"), range(4), range(1, 5), ("rotary", "t5"), range(3))
    clean = {(p["task"], p["nesting"], p["layers"], p["encoding"], p["seed"])
             for p in points["stored"] if p["heads"] == 1 and not p["curriculum"]}  # fmt: skip
    assert clean >= set(wanted)


BAD = [
    ({"task": "open"}, "unknown task 'open'; allowed: plain, keyed, summed"),
    ({"nesting": -1}, "nesting must be an integer of at least 0, got -1"),
    ({"layers": 0}, "layers must be an integer of at least 1, got 0"),
    ({"encoding": "gps"}, "unknown encoding 'gps'"),
    ({"heads": 3}, "heads must divide d_model"),
    ({"steps": 0}, "steps must be an integer of at least 1, got 0"),
    ({"task": "plain", "nesting": 6}, f"length must exceed the target's burn_in of 24, got {LENGTH}"),
]


@pytest.mark.parametrize(("change", "message"), BAD)
def test_bad_input(change, message):
    with pytest.raises(ValueError, match=message):
        run(**{**TINY, **change})


def test_sampling_needs_room_and_a_generator():
    with pytest.raises(ValueError, match="length must exceed the longest lag, 12, got 12"):
        Lookups("plain", 3).sample(1, 12, memlib.reproducible(0))
    with pytest.raises(ValueError, match="batch must be an integer of at least 1, got 0"):
        Lookups("plain", 3).sample(0, 20, memlib.reproducible(0))
    with pytest.raises(TypeError, match=r"sample needs an explicit torch\.Generator"):
        Lookups("plain", 3).sample(1, 20, 0)
