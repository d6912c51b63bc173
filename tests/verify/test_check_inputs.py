"""`check_inputs` says what a verifier cannot: which values are out of contract, and where."""

import re

import jax.numpy as jnp
import numpy as np
import pytest

import speculax as sx

FLAT = [0.25] * 4


def arguments(*changes):
    """Two rows of three drafts, all in contract; a change is (name, index, value)."""
    good = {
        "draft_tokens": np.array([[0, 1, 2], [3, 2, 1]], np.int32),
        "draft_probs": np.tile(np.float32(FLAT), (2, 3, 1)),
        "target_probs": np.tile(np.float32(FLAT), (2, 4, 1)),
        "accept_uniforms": np.full((2, 3), 0.5, np.float32),
        "sample_uniforms": np.full(2, 0.5, np.float32),
    }
    for name, index, value in changes:
        good[name][index] = value
    return good


def complaints(given):
    with pytest.raises(ValueError, match=r"\w") as error:
        sx.check_inputs(**given)
    return str(error.value).splitlines()


def said(lines, name, index):
    """Whether one line names the argument and the position, as in ``name[1, 2]``."""
    place = r"\D+".join(map(str, index))
    return any(re.search(rf"\b{name}\b\W+{place}\b", line) for line in lines)


VALID = {
    "float32": arguments(),
    "point masses": arguments() | {"draft_probs": None},
    "lists": {name: a.tolist() for name, a in arguments().items()},
    "jax": {name: jnp.asarray(a) for name, a in arguments().items()},
    "bfloat16": arguments()
    | {
        "target_probs": jnp.asarray(
            np.tile(np.float32([0.1, 0.2, 0.3, 0.4]), (2, 4, 1)), "bfloat16"
        )
    },
    "float16": arguments() | {"draft_probs": np.tile(np.float16([0.1, 0.2, 0.3, 0.4]), (2, 3, 1))},
    "ends of the uniforms": arguments(
        ("accept_uniforms", (0, 0), 0.0),
        ("accept_uniforms", (1, 2), 1 - 2.0**-24),
        ("sample_uniforms", 1, 0.0),
    ),
    "zero entries": arguments(
        ("target_probs", (0, 0), [0, 0, 0, 1]), ("draft_probs", (0, 1), [0, 0.5, 0.5, 0])
    ),
    "no drafts": {
        "draft_tokens": np.zeros((2, 0), np.int32),
        "draft_probs": np.zeros((2, 0, 4), np.float32),
        "target_probs": np.tile(np.float32(FLAT), (2, 1, 1)),
        "accept_uniforms": np.zeros((2, 0), np.float32),
        "sample_uniforms": np.zeros(2, np.float32),
    },
}


@pytest.mark.parametrize("valid", VALID)
def test_valid_inputs_pass(valid):
    assert sx.check_inputs(**VALID[valid]) is None


@pytest.mark.parametrize("vocab", [32_000, 262_144])
def test_large_rows_rounded_to_bfloat16_pass(vocab):
    logits = 3 * np.random.default_rng(0).normal(size=(1, 2, vocab))
    probs = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    rows = jnp.asarray(probs, jnp.bfloat16)
    uniforms = np.full((1, 1), 0.5, np.float32)
    ids = np.argmax(probs[:, :1], -1).astype(np.int32)
    assert sx.check_inputs(ids, rows[:, :1], rows, uniforms, uniforms[0]) is None


WRONG = [
    ("target_probs", (1, 2), [0.25, 0.25, 0.25, 0.0]),
    ("target_probs", (0, 3), [0.5, 0.25, 0.25, 0.25]),
    ("draft_probs", (1, 0), [0.1, 0.1, 0.1, 0.1]),
    ("target_probs", (1, 3), [0.0, 0.0, 0.0, 0.0]),
    ("target_probs", (0, 1), [1.5, -0.5, 0.0, 0.0]),
    ("draft_probs", (0, 1), [-0.5, 0.5, 0.5, 0.5]),
    ("target_probs", (1, 1), [np.nan, 0.5, 0.5, 0.0]),
    ("draft_probs", (1, 2), [0.5, 0.5, np.nan, 0.0]),
    ("target_probs", (0, 0), [np.inf, 0.0, 0.0, 0.0]),
    ("accept_uniforms", (1, 2), 1.0),
    ("accept_uniforms", (0, 1), -0.125),
    ("accept_uniforms", (1, 0), np.nan),
    ("sample_uniforms", (1,), 1.0),
    ("sample_uniforms", (0,), -1e-6),
    ("sample_uniforms", (1,), np.nan),
    ("sample_uniforms", (0,), np.inf),
    ("draft_tokens", (1, 1), 4),
    ("draft_tokens", (0, 2), -1),
    ("draft_tokens", (0, 0), 2**31 - 1),
]


@pytest.mark.parametrize(("name", "index", "value"), WRONG)
def test_wrong_value_is_named_with_its_position(name, index, value):
    lines = complaints(arguments((name, index, value)))
    assert said(lines, name, index), lines
    others = {"draft_tokens", "target_probs", "accept_uniforms", "sample_uniforms"} - {name}
    assert not any(said(lines, other, (r"\d",)) for other in others), lines


@pytest.mark.parametrize("name", ["draft_probs", "target_probs"])
def test_logits_passed_as_probabilities(name):
    """Logits are told from rows that merely do not sum to one."""
    logits = np.random.default_rng(0).normal(size=arguments()[name].shape).astype(np.float32)
    lines = complaints(arguments() | {name: logits})
    assert any(name in line and "logits" in line for line in lines), lines


def test_all_problems_are_listed():
    lines = complaints(
        arguments(
            ("draft_tokens", (0, 2), 9),
            ("draft_probs", (1, 0), [0.1] * 4),
            ("target_probs", (1, 3), [0.1] * 4),
            ("target_probs", (0, 1), [np.nan] * 4),
            ("accept_uniforms", (1, 1), 2.0),
            ("sample_uniforms", 0, np.nan),
        )
    )
    assert len(lines) == 6, lines
    assert said(lines, "draft_tokens", (0, 2))
    assert said(lines, "draft_probs", (1, 0))
    assert said(lines, "target_probs", (1, 3))
    assert said(lines, "target_probs", (0, 1))
    assert said(lines, "accept_uniforms", (1, 1))
    assert said(lines, "sample_uniforms", (0,))


def poisoned():
    """Everything beyond the lengths [1, 0] is garbage."""
    everything, rest, last = slice(None), slice(1, None), slice(2, None)
    return arguments(
        ("draft_tokens", (0, rest), -7),
        ("draft_tokens", (1, everything), 99),
        ("draft_probs", (0, rest), np.nan),
        ("draft_probs", (1, everything), -5.0),
        ("target_probs", (0, last), np.nan),
        ("target_probs", (1, rest), 7.0),
        ("accept_uniforms", (0, rest), np.nan),
        ("accept_uniforms", (1, everything), 3.0),
    )


def test_what_lies_beyond_the_lengths_is_not_complained_about():
    assert sx.check_inputs(**poisoned(), draft_lengths=np.array([1, 0])) is None


@pytest.mark.parametrize(
    ("name", "index", "value"),
    [
        ("draft_tokens", (0, 0), -7),
        ("draft_probs", (0, 0), np.nan),
        ("target_probs", (0, 1), 0.5),
        ("target_probs", (1, 0), 0.5),
        ("accept_uniforms", (0, 0), 1.0),
        ("sample_uniforms", (1,), 1.0),
    ],
)
def test_what_lies_within_the_lengths_is(name, index, value):
    given = poisoned()
    given[name][index] = value
    lines = complaints(given | {"draft_lengths": np.array([1, 0])})
    assert len(lines) == 1, lines
    assert said(lines, name, index), lines


@pytest.mark.parametrize("length", [-1, 4])
def test_lengths_out_of_range(length):
    """Verifiers clip them; that they had to is worth saying."""
    lines = complaints(arguments() | {"draft_lengths": np.array([3, length])})
    assert said(lines, "draft_lengths", (1,)), lines


def test_draft_token_its_law_cannot_have_given():
    """The law is not the one that was sampled from."""
    lines = complaints(arguments(("draft_probs", (1, 2), [0.5, 0.0, 0.5, 0.0])))
    assert any("draft" in line and re.search(r"1\D+2", line) for line in lines), lines


def test_shapes_and_types_are_checked_too():
    with pytest.raises(ValueError, match=r"accept_uniforms.*\(2, 3\).*\(2, 2\)"):
        sx.check_inputs(**arguments() | {"accept_uniforms": np.zeros((2, 2), np.float32)})
    with pytest.raises(TypeError, match="target_probs"):
        sx.check_inputs(**arguments() | {"target_probs": np.ones((2, 4, 4), np.int32)})


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([[[1, 1]]], r"ids of draft_probs\[0, 0, 1\] is 1, expected ids once in a row"),
        ([[[1, 99]]], r"ids of draft_probs\[0, 0, 1\] is 99, expected an id below 3"),
    ],
)
def test_ids_of_sparse_drafts(ids, message):
    half, target = np.full((1, 1), 0.5), np.full((1, 2, 3), 1 / 3)
    draft = sx.law_from_probs(np.array([[[0.5, 0.5]]]), ids=np.array(ids))
    with pytest.raises(ValueError, match=message):
        sx.check_inputs([[1]], draft, target, half, half[0])
    good = sx.law_from_probs(np.array([[[0.5, 0.5, 0, 0]]]), ids=np.array([[[1, 0, -1, -1]]]))
    sx.check_inputs([[1]], good, target, half, half[0])
