"""Samplers: right ones pass, each mutant is refused and named, chance keeps its word."""

import re
from functools import partial

import jax
import numpy as np
import pytest
from scipy.stats import binom, chi2, kstest, ncx2, power_divergence

from speculax.conformance import MisuseError, check, chi_square
from speculax.conformance.candidate import Candidate, find
from speculax.conformance.report import LEVELS
from speculax.conformance.sampler import naming
from speculax.conformance.sampler.call import NEUTRAL, PARAMETERS, make_rows, takes_key
from speculax.conformance.sampler.definition import ByKey, Sampler
from speculax.conformance.sampler.judge import Group, judge_groups
from speculax.conformance.sampler.kind import (
    KIND,
    ORDERS,
    sample_by_key,
    sample_by_uniforms,
    sample_coupled,
)
from speculax.conformance.sampler.laws import law_groups
from speculax.conformance.sampler.measure import measure
from speculax.conformance.sampler.mutants import MUTANTS, mutants_of
from speculax.conformance.sampler.oracle import LARGEST_UNIFORM, row_law
from speculax.conformance.sampler.rows import clear_rows

from .samplers import NAMED, OF_KEY, OF_UNIFORMS, changed

SMALL = ["form", "law", "settings", "greedy", "edges"]


def numpy_candidate(function):
    return Candidate(function, "sample", "my.py:sample", "numpy", compiled=False)


def ours(order, by_key):
    function = partial(sample_by_key if by_key else sample_by_uniforms, order=order)
    return Candidate(function, "sample", "my.py:sample", "jax", compiled=True)


def in_float64(order, by_key):
    return numpy_candidate(ByKey(Sampler(order)) if by_key else Sampler(order))


def refusals(candidate, level, order="sequential", stages=KIND.stages):
    return {s for s in stages if KIND.stages[s](candidate, order, level).failures}


# --- Right ones


@pytest.mark.parametrize(
    ("by_key", "level"),
    [
        (False, "contract"),
        (True, "robust"),
        *(pytest.param(False, level, marks=pytest.mark.slow) for level in ("robust", "strict")),
        *(pytest.param(True, level, marks=pytest.mark.slow) for level in ("contract", "strict")),
    ],
)
@pytest.mark.parametrize("order", ORDERS)
def test_right_ones_pass(order, by_key, level):
    candidate = in_float64(order, by_key)
    assert not refusals(candidate, level, order)
    assert naming.diagnose(candidate, order, level) is None


@pytest.mark.parametrize(("order", "by_key"), [("sequential", False), ("joint", True)])
def test_ours_pass_at_the_strict_level(order, by_key):
    assert not refusals(ours(order, by_key), "strict", order, SMALL[1:])


@pytest.mark.slow  # compiles for seconds
@pytest.mark.parametrize("by_key", [False, True], ids=["uniforms", "key"])
@pytest.mark.parametrize("order", ORDERS)
def test_ours_pass_all_stages(order, by_key):
    assert not refusals(ours(order, by_key), "strict", order)


@pytest.mark.slow  # compiles for seconds
def test_the_coupled_draw_passes_all_stages():
    candidate = Candidate(sample_coupled, "sample", "my.py:sample", "jax", compiled=True)
    assert not refusals(candidate, "strict", "sequential")


def of_text(text, tmp_path, **options):
    path = tmp_path / "my.py"
    path.write_text(text)
    return find(str(path), PARAMETERS, **options)


@pytest.mark.parametrize("text", [OF_UNIFORMS, OF_KEY], ids=["uniforms", "key"])
def test_tokens_may_be_laid_out_in_any_order(text, tmp_path):
    candidate = of_text(text, tmp_path)
    assert takes_key(candidate) == (text == OF_KEY)
    assert not refusals(candidate, "contract", stages=SMALL)


def test_the_other_order_of_filters_is_refused(tmp_path):
    assert refusals(of_text(OF_UNIFORMS, tmp_path), "contract", "joint", ["settings"])


def alias(logits, temperature, top_k, top_p, min_p, uniforms):
    """Walker's method: one number chooses a column, and its rest one of two tokens in it."""
    ids = []
    for row, t, u in zip(logits.astype(float), temperature, uniforms, strict=True):
        weights = np.exp((row - row.max()) / t)
        left, size = weights / weights.sum() * len(row), len(row)
        cut, other = np.ones(size), np.arange(size)
        small, large = ([i for i in range(size) if (left[i] < 1) == low] for low in (True, False))
        while small and large:
            i, j = small.pop(), large[-1]
            cut[i], other[i] = left[i], j
            left[j] -= 1 - left[i]
            if left[j] < 1:
                small.append(large.pop())
        column = int(u * size)
        ids.append(column if u * size - column < cut[column] else other[column])
    return np.array(ids, np.int32)


def test_a_map_that_is_not_monotone_is_measured_exactly():
    candidate = numpy_candidate(alias)
    for group in law_groups("sequential")[:2]:
        measured = measure(candidate, group.rows)
        assert measured.draws == 0
        for r, probs in enumerate(measured.probs):
            law = row_law(group.rows.logits[r], group.rows.settings(r))
            np.testing.assert_allclose(probs[:-2], law.after, atol=1e-6)
        assert judge_groups(candidate, "sequential", "strict", [group])[1] == []


def test_what_is_no_function_of_a_uniform_is_counted():
    """Its tokens change at every step: 24 bits are enough to count by."""
    law = Sampler()

    def scrambled(*arguments):
        steps = np.rint(arguments[-1] * 2**24).astype(np.int64)
        return law(*arguments[:-1], (steps * 7_368_787 % 2**24) / 2**24)

    group = law_groups("sequential")[1]
    assert measure(numpy_candidate(scrambled), group.rows).draws > 0
    assert judge_groups(numpy_candidate(scrambled), "sequential", "strict", [group])[1] == []


# --- Wrong ones


def test_there_are_enough_mutants():
    assert len({*mutants_of("sequential", True), *MUTANTS}) >= 20


def assert_refused_and_named(name, order, by_key):
    candidate = numpy_candidate(mutants_of(order, by_key)[name])
    assert refusals(candidate, "strict", order)
    found = naming.diagnose(candidate, order, "strict")
    assert found is not None
    assert found.name == name
    assert found.fault


@pytest.mark.parametrize("name", mutants_of("sequential", False))
def test_each_mutant_is_refused_and_named(name):
    assert_refused_and_named(name, "sequential", False)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "order", "by_key"),
    [
        (name, order, by_key)
        for order, by_key in [("joint", False), ("sequential", True), ("joint", True)]
        for name in mutants_of(order, by_key)
    ],
)
def test_each_mutant_of_the_other_forms(name, order, by_key):
    assert_refused_and_named(name, order, by_key)


@pytest.mark.parametrize("name", NAMED)
def test_mistakes_in_jax_are_named(name, tmp_path):
    candidate = of_text(NAMED[name], tmp_path)
    assert refusals(candidate, "contract", stages=["law", "settings"])
    found = naming.diagnose(candidate, "sequential", "contract")
    assert found is not None
    assert found.name == name


def test_the_public_fault_of_mixed_batches(tmp_path):
    """tpu-inference keeps greedy rows at -1, and a sampled row beside them makes it divide."""
    text = changed("jnp.where(is_greedy, 1.0,", "jnp.where(is_greedy, -1.0 + 1e-9,")
    text = changed("jnp.where(is_greedy, jnp", "jnp.where(is_greedy.all(), jnp", text)
    candidate = of_text(text, tmp_path)
    assert refusals(candidate, "contract", stages=SMALL[1:]) == {"greedy"}
    assert naming.diagnose(candidate, "sequential", "contract").name == "GreedyLogitsInverted"


def test_failures_can_be_pasted(tmp_path, monkeypatch):
    candidate = of_text(NAMED["TopKOneMore"], tmp_path)
    failures = KIND.stages["settings"](candidate, "sequential", "contract").failures
    monkeypatch.syspath_prepend(str(tmp_path))
    names = {}
    exec(failures[0].snippet.replace("\nsample(", "\nids = sample("), names)
    assert f"token {names['ids'][0]} comes out" in failures[0].what
    assert "top_k 3" in failures[0].expected
    candidate = of_text(NAMED["TemperatureIgnored"], tmp_path)
    failures = KIND.stages["law"](candidate, "sequential", "contract").failures
    exec(failures[0].snippet, names)
    assert np.bincount(names["ids"]).argmax() in range(6)


def test_levels_demand_more(tmp_path):
    candidate = of_text(OF_UNIFORMS, tmp_path)
    edges = {
        level: KIND.stages["edges"](candidate, "sequential", level).failures for level in LEVELS
    }
    assert not edges["contract"]
    names = [failure.what for failure in edges["robust"]]
    assert any("tie with the k-th" in name for name in names)
    assert not any("-1" in name for name in names)
    assert any("gives -1" in failure.what for failure in edges["strict"])


@pytest.mark.slow  # a billion random numbers
def test_noise_of_23_bits_loses_rare_tokens_and_is_refused_at_the_strict_level():
    def sample(logits, temperature, top_k, top_p, min_p, key, mode):
        return jax.random.categorical(key, logits, mode=mode).astype(np.int32)

    for mode, wrong in (("low", {"rare tokens"}), ("high", set())):
        function = partial(sample, mode=mode)
        candidate = Candidate(function, "sample", "my.py:sample", "jax", compiled=True)
        assert refusals(candidate, "strict", stages=["rare tokens"]) == wrong
        assert not refusals(candidate, "robust", stages=["rare tokens"])


# --- Whole checks


@pytest.mark.slow  # a process for each stage
def test_a_whole_check(tmp_path):
    path = tmp_path / "my.py"
    path.write_text(OF_UNIFORMS)
    report = check(str(path), kind="sampler", level="contract")
    assert report.passed
    assert [stage.name for stage in report.stages] == [*KIND.stages]


FORMS = {
    "None": ("return jnp.where", "return None  # ", "returned None"),
    "a shape": ("axis=1), ids)", "axis=1), ids)[:, None]", r"array of shape \(8, 1\), not \(8,\)"),
    "floats": ("astype(jnp.int32)", "astype(jnp.float32)", "returned float32 for ids"),
    "a dtype": ("astype(jnp.int32)", "astype(jnp.uint8)", "wrong dtype"),
    "a branch": ("    size =", "    if top_k[0]: pass\n    size =", "a Python if"),
    "an error": ("    size =", "    raise ValueError('no')\n    size =", "raises ValueError, in"),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_wrong_forms(tmp_path, form):
    old, new, message = FORMS[form]
    candidate = of_text(changed(old, new), tmp_path)
    outcome = KIND.stages["form"](candidate, "sequential", "contract")
    assert re.search(message, outcome.failures[0].what)


def test_misuse(tmp_path):
    path = tmp_path / "other.py"
    path.write_text("def sample(logits, key):\n    return logits\n")
    with pytest.raises(MisuseError, match="must take 6 arguments"):
        find(f"{path}:sample", PARAMETERS)
    twice = OF_KEY.replace("def sample", "def again")
    assert of_text(OF_UNIFORMS + twice, tmp_path).name == "sample"
    with pytest.raises(MisuseError, match="2 functions that could be meant"):
        of_text(OF_KEY + twice, tmp_path)
    with pytest.raises(MisuseError, match="no rule 'third' for --as sampler"):
        check("speculax:sample", kind="sampler", rule="third")


class Retraced(Candidate):
    """A function that is traced in every call."""

    @property
    def callable(self):
        self.traces += 1
        return self.function


def test_retracing_is_seen():
    candidate = Retraced(sample_by_uniforms, "sample", "my.py:sample", "jax", compiled=True)
    (failure,) = KIND.stages["form"](candidate, "sequential", "contract").failures
    assert "trace the function again" in failure.what


# --- Chance


def test_chi_square_is_that_of_scipy():
    for degrees in (1, 2, 3, 8, 25, 80):
        for statistic in (0.1, 1.0, 7.5, 40.0, 200.0):
            want = chi2.sf(statistic, degrees)
            np.testing.assert_allclose(chi_square.survival(statistic, degrees), want, rtol=1e-9)
        limit = chi_square.limit(1e-6, degrees)
        np.testing.assert_allclose(limit, chi2.isf(1e-6, degrees), rtol=1e-9)
    law = np.array([0.4, 0.3, 0.2, 0.1])
    counts = np.array([430, 290, 190, 90])
    found = power_divergence(counts, 1000 * law, lambda_="log-likelihood")
    correction = 1 + (sum(1 / (1000 * law)) - 1 / 1000) / 18
    want = chi2.sf(found.statistic / correction, 3)
    np.testing.assert_allclose(chi_square.p_value(counts, law), want, rtol=1e-9)
    other = np.array([0.42, 0.29, 0.19, 0.1])
    shift = 5000 * ((law - other) ** 2 / law).sum()
    want = ncx2.sf(chi2.isf(0.01, 3), 3, shift)
    np.testing.assert_allclose(chi_square.power(law, other, 5000, 0.01), want, rtol=1e-6)
    assert chi_square.power(law, law, 5000, 0.01) == pytest.approx(0.01, rel=1e-6)


@pytest.mark.parametrize(("count", "share"), [(512, 1 / 64), (512, 0.3), (32768, 1.6e-4)])
def test_false_alarms_are_as_rare_as_they_are_said_to_be(count, share):
    """Exactly, of two cells: at most twice the nominal chance."""
    met = np.arange(count + 1)
    law = np.array([share, 1 - share])
    p_values = np.array([chi_square.p_value(np.array([x, count - x]), law) for x in met])
    for nominal in (1e-3, 1e-6, 1e-9):
        assert binom.pmf(met[p_values < nominal], count, share).sum() < 2 * nominal


def test_what_is_impossible_is_never_pooled():
    law = np.array([0.5, 0.5, 0.0])
    assert chi_square.p_value(np.array([50, 50, 0]), law) > 0.9
    assert chi_square.p_value(np.array([50, 50, 1]), law) == 0
    other = np.array([0.499, 0.499, 0.002])
    assert chi_square.power(law, other, 1000, 1e-6) == pytest.approx(1 - 0.998**1000)


def test_power_is_what_happens():
    rng = np.random.default_rng(0)
    law, other = np.array([0.4, 0.3, 0.2, 0.1]), np.array([0.44, 0.28, 0.18, 0.1])
    refused = np.mean(
        [chi_square.p_value(rng.multinomial(1000, other), law) < 0.01 for _ in range(2000)]
    )
    assert abs(refused - chi_square.power(law, other, 1000, 0.01)) < 0.05


SETTINGS = [("top_k",), ("top_p",), ("temperature", "min_p"), ("top_k", "top_p", "min_p")]


@pytest.mark.parametrize("order", ORDERS)
def test_no_seed_accuses_a_right_one(order):
    """200 seeds of rows, in few batches."""
    groups = [
        Group(f"{names}, seed {seed}", clear_rows(names, order, 1, seed=seed), "")
        for names in SETTINGS
        for seed in range(1, 51)
    ]
    candidates = [ours(order, by_key) for by_key in (False, True)]
    for candidate in [*candidates, in_float64(order, False), in_float64(order, True)]:
        checks, failures = judge_groups(candidate, order, "strict", groups)
        assert checks == 200
        assert not failures


@pytest.mark.slow
@pytest.mark.parametrize("is_ours", [True, False], ids=["ours", "float64"])
def test_p_values_are_uniform(is_ours):
    """Over 200 seeds, of four laws each."""
    candidate = ours("sequential", True) if is_ours else in_float64("sequential", True)
    rows = clear_rows(("temperature", "top_k"), "sequential", 4)
    found = []
    for seed in range(200):
        measured = measure(candidate, rows, seed=seed)
        for r in range(4):
            law = row_law(rows.logits[r], rows.settings(r)).after
            if (law > 0).sum() > 1:
                counts = np.rint(measured.probs[r, :-2] * measured.draws).astype(int)
                found.append(chi_square.p_value(counts, law))
    assert kstest(found, "uniform").pvalue > 1e-3


def test_ends_of_the_range_are_looked_at():
    """A token that only the last uniform gives is seen."""

    def sample(logits, temperature, top_k, top_p, min_p, uniforms):
        return np.where(uniforms >= LARGEST_UNIFORM, 5, 0).astype(np.int32)

    rows = make_rows([[0.0] + [-np.inf] * 5] * 2, [NEUTRAL] * 2)
    measured = measure(numpy_candidate(sample), rows)
    np.testing.assert_array_equal(measured.probs[:, 5], 2.0**-24)
