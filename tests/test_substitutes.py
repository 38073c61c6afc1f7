"""Substitutes for the dot product: targets by hand, equal parameters, gates written down, inputs told apart or not."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import memlib
from memlib import results
from memlib.experiments import substitutes as subs
from memlib.model import Transformer
from memlib.targets import Finite

SMALL = {"task": "bits", "variant": "TMX, sink", "lr": 0.04, "seed": 0}


# ---------------------------------------------------------------- targets


def _spelled(bits):
    return sum(2**j for j, bit in enumerate(bits) if bit > 0)


def test_symbols_by_hand():
    bits = torch.tensor([[-1.0, -1.0], [1.0, -1.0], [-1.0, 1.0], [1.0, 1.0]], dtype=torch.float64)
    assert subs.symbol(bits).tolist() == [0, 1, 2, 3]
    assert subs.symbol(bits[:, :1]).tolist() == [0, 1, 0, 1]


@pytest.mark.parametrize("bits", [1, 2, 3])
@pytest.mark.parametrize("values", ["real", "bits"])
def test_a_look_up_reads_the_lag_its_symbol_spells(bits, values):
    target = subs.lookup(bits, values)
    x, y = target.sample(3, 20, memlib.reproducible(0))
    assert target.burn_in == 2**bits and target.nesting == 0
    assert (x[..., 0].abs() == 1).all() == (values == "bits")
    for b in range(3):
        for t in range(target.burn_in, 20):
            assert y[b, t, 0] == x[b, t - 1 - _spelled(x[b, t, 1:]), 0]


def test_combined_look_ups_go_through_the_token_in_between():
    target = subs.combined()
    x, y = target.sample(4, 24, memlib.reproducible(1))
    assert target.nesting == 2 and target.burn_in == 4
    for b in range(4):
        for t in range(4, 24):
            here, there = _spelled(x[b, t, 1:]), _spelled(x[b, t - 1 - _spelled(x[b, t, 1:]), 1:])
            same = 3 - (here ^ there)  # the product of two signs is positive where the bits agree
            assert y[b, t, 0] == x[b, t - 1 - same, 0]


@pytest.mark.parametrize(("window", "bits"), [(8, 2), (3, 1), (5, 3)])
def test_recall_finds_the_last_match_in_the_window(window, bits):
    target = subs.Recall(window, bits)
    x = target.sample(6, 30, memlib.reproducible(2))[0]
    y, misses = target(x), 0
    for b in range(6):
        for t in range(30):
            matches = [s for s in range(1, min(window, t) + 1) if torch.equal(x[b, t - s, 1:], x[b, t, 1:])]
            misses += not matches
            assert y[b, t, 0] == (x[b, t - matches[0], 0] if matches else 0.0)
    assert misses  # the last branch was taken too


def test_the_answer_to_a_key_moves_with_the_tokens_in_between_but_that_to_a_pointer_does_not():
    pointer, recall = subs.lookup(3), subs.Recall()
    x = recall.sample(200, 16, memlib.reproducible(3))[0]
    other = x.clone()
    other[:, :-1, 1:] *= -1  # all symbols but the present one
    assert bool((recall(x)[:, -1] != recall(other)[:, -1]).any())
    x = pointer.sample(200, 16, memlib.reproducible(3))[0]
    other = x.clone()
    other[:, :-1, 1:] *= -1
    assert torch.equal(pointer(x)[:, -1], pointer(other)[:, -1])


# ---------------------------------------------------------------- equal parameters, and what they cost


@pytest.mark.parametrize("task", list(subs.TASKS))
def test_parameters_agree(task):
    counts = {variant: subs.parameters(subs.config(task, variant)) for variant in subs.VARIANTS}
    if subs.TASKS[task].width:
        assert all(abs(count / counts["DP"] - 1) < 0.01 for count in counts.values()), counts
        assert subs.config(task, "DP").width == subs.TASKS[task].width
    else:  # attention alone: no neuron to add
        assert {subs.config(task, variant).width for variant in subs.VARIANTS} == {0}
    made = subs.model(task, "DP-free", 0)
    assert sum(p.numel() for p in made.parameters()) == counts["DP-free"]


@pytest.mark.parametrize("variant", list(subs.VARIANTS))
def test_every_variant_is_what_its_name_says(variant):
    c = subs.config("real", variant)
    kind = variant.split(",")[0]
    assert c.attention == {"DP": "dp", "TMX": "tmx", "linear": "linear", "DP-free": "dp_free"}[kind]
    assert c.encoding == ("rotary" if "rotary" in variant else "lin" if variant.endswith(", lin") else "t5")
    plain = {"TMX": "none"}.get(variant, "softmax")
    assert c.normaliser == ("sink" if "sink" in variant else plain)


def test_without_normaliser_a_model_starts_as_an_average():
    made = subs.model("real", "TMX", 0)
    x = subs.lookup().sample(8, 12, memlib.reproducible(0))[0]
    total = made.attention_maps(x)[0][:, :, -1].sum(-1)
    assert 0.2 < float(total.median()) < 5
    lower = Transformer(made.config, memlib.reproducible(0)).attention_maps(x)[0][:, :, -1].sum(-1)
    torch.testing.assert_close(total * 12, lower)


def _weights(model, *names):
    return sum(p.numel() for name, p in model.named_parameters() if any(n in name for n in names))


@pytest.mark.parametrize("task", ["real", "nested"])
@pytest.mark.parametrize("variant", ["DP", "TMX, sink", "DP-free", "linear"])
def test_projections_cost_two_operations_per_weight(task, variant):
    made = subs.model(task, variant, 0)
    cost = subs.arithmetic(made.config, 100)
    assert cost["projections"] == 2 * _weights(made, "query", "key", "value", "attention.out")
    assert cost["ffn"] == 2 * _weights(made, "hidden.weight", "ffn.out")


def test_mixing_by_hand():
    """Four heads of width 4 and 7 tokens, of which 4 are visible on average."""
    mixing = {v: subs.arithmetic(subs.config("real", v), 7)["mixing"] for v in subs.VARIANTS}
    assert mixing["DP"] == mixing["DP, rotary"] == 4 * 4 * (4 + 4 + 4 + 4 + 3)
    assert mixing["DP-free"] == 4 * 4 * 8
    assert mixing["TMX"] == mixing["TMX, sink"] == 4 * 4 * 8 + 4 * 6
    assert mixing["linear"] == 4 * 4 * 17
    assert mixing["linear, lin"] == 4 * 5 * 20


def test_mixing_grows_as_it_should():
    def growth(variant, length):
        c = subs.config("real", variant)
        return subs.arithmetic(c, 4 * length)["mixing"] / subs.arithmetic(c, length)["mixing"]

    assert growth("DP", 2**14) == pytest.approx(4, abs=0.01)
    assert growth("linear, lin", 2**14) == 1
    for variant in ("TMX, sink", "DP-free", "linear"):
        assert growth(variant, 2**14) == pytest.approx(17 / 15, abs=0.01)  # the logarithm alone


# ---------------------------------------------------------------- gates


@pytest.mark.parametrize("bits", [1, 2, 3])
@pytest.mark.parametrize("normaliser", ["sink", "none"])
@pytest.mark.parametrize("amplitude", [4.0, 8.0, 16.0])
def test_gates_written_down_look_up(bits, normaliser, amplitude):
    made, target, length = subs.gated_lookup(bits, amplitude, normaliser), subs.lookup(bits), 30
    assert made.config.heads == 2**bits and made.config.width == 0 and made.config.attention == "tmx"
    x, y = target.sample(64, length, memlib.reproducible(0))
    with torch.no_grad():
        error = float((made(x) - y)[:, target.burn_in :].abs().max())
    leak = length * math.exp(-2 * amplitude)  # of a head, to the lags it should not read
    bound = 2**bits * (math.exp(-amplitude) + leak) if normaliser == "sink" else 2**bits * leak
    assert 0 < error <= bound * (1 + leak)


def test_gates_are_weights_and_nothing_else(tmp_path):
    made = subs.gated_lookup()
    made.save(tmp_path / "gates")
    x = subs.lookup().sample(4, 20, memlib.reproducible(0))[0]
    assert torch.equal(Transformer.load(tmp_path / "gates")(x), made(x))


CONFUSED = [("far", "DP-free"), ("far", "TMX"), ("far", "TMX, sink"), ("far", "TMX, sink, lin"), ("content", "DP-free"),
            ("content", "TMX"), ("content", "TMX, sink"), ("content", "DP-free, lin")]  # fmt: skip


@pytest.mark.parametrize(("task", "variant"), CONFUSED)
@given(seed=st.integers(0, 2**16))
@settings(deadline=None, max_examples=10)
def test_no_gate_tells_the_witnesses_apart(task, variant, seed):
    """Theorem a:thm-channels for TMX: whatever the weights, one layer answers both the same, and errs by 1."""
    made, target = subs.model(task, variant, seed), subs.TASKS[task].make()
    x, wanted = subs.witnesses(made, target)
    assert torch.equal(target(x)[:, -1, 0], wanted) and float(wanted.sum()) == 0 and float(wanted.abs().max()) == 1
    assert float(x.abs().max()) <= 1 and bool((x[..., 1:].abs() == 1).all())
    assert torch.equal(x[0, :, 1:], x[1, :, 1:])
    with torch.no_grad():
        answers = made(x)[:, -1, 0]
        assert float((answers[0] - answers[1]).abs()) <= 1e-9 * (1 + float(answers.abs().max()))
        assert float((answers - wanted).abs().max()) >= 1 - 1e-6


@pytest.mark.parametrize(("task", "variant"), [("far", "DP"), ("content", "DP, sink"), ("far", "linear")])
def test_a_dot_product_tells_them_apart(task, variant):
    """Values enter its weights, not only what is weighed."""
    x, _ = subs.witnesses(subs.model(task, "TMX, sink", 0), subs.TASKS[task].make())
    made = subs.model(task, variant, 0)
    made.layers[0].attention.encoding.load_state_dict(
        subs.model(task, "TMX, sink", 0).layers[0].attention.encoding.state_dict()
    )
    with torch.no_grad():
        answers = made(x)[:, -1, 0]
    assert float((answers[0] - answers[1]).abs()) > 1e-3


@pytest.mark.parametrize(("task", "variant"), [("real", "TMX"), ("bits", "DP-free"), ("nested", "TMX"), ("far", "DP")])
def test_witnesses_elsewhere_are_refused(task, variant):
    with pytest.raises(ValueError, match="witnesses exist for one layer without dot product, real values and fewer"):
        subs.witnesses(subs.model(task, variant, 0), subs.TASKS[task].make())


# ---------------------------------------------------------------- training


def test_runs_repeat_and_learn():
    found = subs.run(**SMALL)
    assert found == subs.run(**SMALL)
    assert found["error"] < 0.05 and found["neurons"] == 30 and found["parameters"] == 1743
    untrained = subs.run(**{**SMALL, "steps": 1})
    assert untrained["error"] > 0.9
    assert found["error"] != subs.run(**{**SMALL, "seed": 1})["error"]


def test_runs_report_what_is_confused():
    found = subs.run(task="content", variant="DP-free", lr=0.04, seed=0, steps=60, confuse=True)
    assert found["gap"] < 1e-9 and found["worst"] >= 1 - 1e-9 and 0.5 < found["error"] < 1.1


def test_bad_input():
    with pytest.raises(ValueError, match="unknown task 'chasing'; allowed: real; bits; alone"):
        subs.config("chasing", "DP")
    with pytest.raises(ValueError, match="unknown variant 'Mamba'; allowed: DP; DP, sink; DP, rotary"):
        subs.config("real", "Mamba")
    with pytest.raises(ValueError, match="unknown values 'text'; allowed: real, bits"):
        subs.lookup(values="text")
    with pytest.raises(ValueError, match="window must be"):
        subs.Recall(0)
    assert Finite((-1.0, 1.0)) == subs.BIT


# ---------------------------------------------------------------- the pilot, and the stored table


def _pilot():
    table = results.read("substitutes", columns=["task", "variant", "lr", "seed", "error"])
    return table[table.seed.isin(subs.PILOT_SEEDS)]


def test_pilot_and_results_share_no_seed():
    assert not set(subs.PILOT_SEEDS) & set(subs.SEEDS)
    assert {point["seed"] for point in subs.grid("book")} == set(subs.SEEDS)


def test_rates_are_the_best_of_the_pilot():
    pilot = _pilot()
    assert len(pilot) == sum(len(rates) * len(variants) * 3 for rates, variants in subs.PILOT.values())
    assert subs.best_rates(pilot) == subs.RATES
    worse = pilot.copy()
    chosen = (worse.task == "real") & (worse.variant == "DP") & (worse.lr == subs.RATES["real"]["DP"])
    worse.loc[chosen, "error"] += 10
    assert subs.best_rates(worse) != subs.RATES


def test_the_stored_table_is_the_stored_grid():
    table = results.read("substitutes")
    keys = ["task", "variant", "lr", "seed"]
    stored = sorted(map(tuple, table[keys].to_numpy().tolist()))
    assert stored == sorted(tuple(point[key] for key in keys) for point in subs.grid("stored"))


# ---------------------------------------------------------------- the benchmark


@pytest.mark.parametrize("length", [1, 63, 64, 65, 200])
def test_what_is_timed_is_what_memlib_computes(length):
    from benchmarks import substitutes as bench

    assert bench.largest_difference(length) < 1e-5
    for step in bench.contestants(length).values():
        step()
