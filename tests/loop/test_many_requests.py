"""A thousand requests of random settings over a few rows: each gets what it gets alone.

Alone means a call of its own with as many rows, so with other programs: without the settings that
it does not use, and for every other request without a drafter.
"""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import speculax as sx

pytestmark = pytest.mark.slow

FULL_EFFORT = True  # compile as users do: these tests ask for equality to the last bit

NUM, ROWS, MAX_LENGTH = 1000, 6, 120
SOURCE = "import os\n\n\nclass Stack:\n    def push(self, item):\n        self.items.append(item)\n"
TARGET = sx.load("demo")


@jax.tree_util.register_static
class AtMostEvery:
    """A mask under which a line has tokens at all: a newline does not follow a newline."""

    def __init__(self, newline):
        self.newline = newline

    def init(self):
        return jnp.bool_(False)

    def advance(self, state, token):
        return token == self.newline

    def allowed(self, state):
        tokens = jnp.arange(TARGET.network.vocab_size, dtype=jnp.int32)
        return ~state | (tokens != self.newline)


MASK = AtMostEvery(int(TARGET.tokenizer.encode("\n")[-1]))
# What may be used together; values are random. A kind is a program to compile.
KINDS = [
    (),
    ("temperature",),
    ("temperature", "top_k", "top_p"),
    ("temperature", "min_p", "order", "top_p"),
    ("repetition_penalty", "stop"),
    ("temperature", "presence_penalty", "frequency_penalty"),
    ("temperature", "logit_bias", "stop_ids"),
    ("temperature", "token_mask", "repetition_penalty", "top_k"),
]
NEUTRAL = {
    "temperature": 0.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "order": "sequential",
    "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0,
    "logit_bias": None, "token_mask": None, "stop": [], "stop_ids": [],
}  # fmt: skip


def random_request(number):
    rng = np.random.default_rng([6, number])
    size = TARGET.network.vocab_size
    values = {
        "temperature": float(rng.uniform(0.2, 1.5)),
        "top_k": int(rng.integers(1, 50)),
        "top_p": float(rng.uniform(0.3, 1)),
        "min_p": float(rng.uniform(0, 0.2)),
        "order": str(rng.choice(["sequential", "joint"])),
        "repetition_penalty": float(rng.uniform(0.8, 1.6)),
        "presence_penalty": float(rng.uniform(-1, 1)),
        "frequency_penalty": float(rng.uniform(-0.3, 0.5)),
        "logit_bias": {int(token): float(rng.normal()) for token in rng.integers(0, size, 5)},
        "token_mask": MASK,
        "stop": [str(rng.choice(["self", ")", "\n\n", "return"]))],
        "stop_ids": [int(token) for token in rng.integers(0, size, 3)],
    }
    begin, end = sorted(rng.integers(0, len(SOURCE) + 1, 2))
    return {
        "prompt": SOURCE[begin:end],
        "seed": int(rng.integers(0, 2**32)),
        "max_new_tokens": int(rng.integers(0, 40)),
        **NEUTRAL,
        **{name: values[name] for name in KINDS[number % len(KINDS)]},
    }


REQUESTS = [random_request(number) for number in range(NUM)]
COMMON = {"verify": "coupled", "slots": ROWS, "max_length": MAX_LENGTH, "deterministic": True}


@cache
def together():
    """The results, and what was handed out of each request."""
    made, ended = {number: [] for number in range(NUM)}, []

    def note(new):
        made[new.request] += new.tokens
        if new.stop_reason is not None:
            ended.append(new.request)

    columns = {name: [request[name] for request in REQUESTS] for name in REQUESTS[0]}
    prompts = columns.pop("prompt")
    drafter = sx.NGram(5)
    results = sx.generate(TARGET, prompts, drafter=drafter, on_tokens=note, **COMMON, **columns)
    return results, made, ended


def test_none_is_lost_and_none_is_handed_out_twice():
    results, made, ended = together()
    assert len(results) == NUM
    assert [result.tokens.tolist() for result in results] == list(made.values())
    assert sorted(ended) == list(range(NUM))
    reasons = {result.stop_reason for result in results}
    assert reasons == {"eos", "stop", "length"}
    assert sum(result.stats.accepted for result in results) > NUM


@pytest.mark.parametrize("kind", range(len(KINDS)), ids=[" ".join(kind) for kind in KINDS])
def test_each_is_as_alone(kind):
    results = together()[0]
    for number in range(kind, NUM, len(KINDS)):
        request = dict(REQUESTS[number])
        is_drafted = number // len(KINDS) % 2 == 0
        drafter = sx.NGram(5) if is_drafted else None
        prompt = request.pop("prompt")
        [alone] = sx.generate(TARGET, [prompt], drafter=drafter, **COMMON, **request)
        shared = results[number]
        assert shared.tokens.tolist() == alone.tokens.tolist(), number
        assert (shared.text, shared.stop_reason) == (alone.text, alone.stop_reason)
        if is_drafted:
            assert shared.accepted.tolist() == alone.accepted.tolist()
            assert shared.stats.steps == alone.stats.steps
