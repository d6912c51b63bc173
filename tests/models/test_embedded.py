"""The pair that comes with the package: small, of one tokenizer, and worth its bytes."""

import json
from importlib import resources

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from safetensors import safe_open
from tokenizers import Tokenizer as Backend

import speculax as sx
from speculax.models import load as load_module
from speculax.models.errors import LoadError
from speculax.training import losses
from tests.slow import slow_but

WEIGHTS = resources.files("speculax.models") / "weights"
# Written for this test: neither model was trained on it.
CODE = '''
def count_words(path, encoding="utf-8"):
    """Return how often each word occurs in a file."""
    counts = {}
    with open(path, encoding=encoding) as file:
        for line in file:
            for word in line.split():
                counts[word] = counts.get(word, 0) + 1
    return counts


class Account:
    def __init__(self, name, balance=0):
        self.name = name
        self.balance = balance

    def withdraw(self, amount):
        if amount > self.balance:
            raise ValueError("not enough money")
        self.balance -= amount
        return self.balance
'''


@pytest.fixture(scope="module")
def pair():
    return sx.load("demo"), sx.load("demo-draft")


def test_the_pair_is_small():
    sizes = [file.stat().st_size for file in WEIGHTS.iterdir()]
    assert sum(sizes) <= 8e6


def test_the_files_say_what_they_were_made_from():
    for name in ("demo", "demo-draft"):
        with safe_open(str(WEIGHTS / f"{name}.safetensors"), framework="numpy") as file:
            info = json.loads(file.metadata()["info"])
        assert info["corpus"].startswith("standard library of Python 3.")
        assert len(info["sha256"]) == 64


def test_both_have_one_tokenizer(pair):
    target, draft = pair
    assert target.tokenizer == draft.tokenizer
    assert hash(target.tokenizer) == hash(draft.tokenizer)
    assert target.tokenizer != sx.load("demo")  # a model is no tokenizer
    sizes = [sum(x.size for x in jax.tree.leaves(model.params)) for model in pair]
    assert sizes[1] * 5 < sizes[0]


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.text())
def test_every_text_comes_back(text):
    tokenizer = TOKENIZER
    text = text.encode("utf-8", "ignore").decode()
    ids = tokenizer.encode(text)
    assert ids[0] == 0
    assert tokenizer.decode(ids) == text.replace("<|end|>", "")
    backend = Backend.from_file(str(WEIGHTS / "tokenizer.json"))
    assert ids[1:] == backend.encode(text, add_special_tokens=False).ids
    assert backend.decode(ids) == tokenizer.decode(ids)


TOKENIZER = sx.load("demo-draft").tokenizer


def test_a_stream_gives_whole_characters():
    text = "naïve 日本語 🎉"
    stream = TOKENIZER.stream()
    pieces = [stream.push(id) for id in TOKENIZER.encode(text)]
    assert "".join(pieces) + stream.flush() == text
    assert "\ufffd" not in "".join(pieces)
    half = TOKENIZER.encode("é")[1:2]
    assert len(TOKENIZER.encode("日")) > 2  # so that this means something
    assert TOKENIZER.decode(TOKENIZER.encode("日")[:2]) == "\ufffd"
    assert TOKENIZER.decode(half) in ("é", "\ufffd")


def test_they_know_python_and_the_draft_agrees_with_the_target(pair):
    """Nats a token: 7.6 without any knowledge. On such text most draft tokens are accepted."""
    target, _ = pair
    ids = np.asarray([target.tokenizer.encode(CODE)], np.int32)
    logits = [model.logits(ids) for model in pair]
    surprises = [
        -float(np.mean(np.take_along_axis(jax.nn.log_softmax(x[:, :-1]), ids[:, 1:, None], axis=2)))
        for x in map(np.asarray, logits)
    ]
    assert surprises[0] < 2.6
    assert surprises[0] < surprises[1] < 3.5
    assert float(jnp.mean(losses.acceptance(*logits))) > 0.6


def test_the_target_writes_what_a_person_recognises(pair):
    target, _ = pair
    text = sx.generate(target, "class Stack:", max_new_tokens=120).text
    assert "    def __init__(self" in text


@pytest.mark.parametrize("verify", slow_but(("coupled",), ["block", "coupled"]))
def test_drafting_pays_in_target_calls(verify, pair):
    target, draft = pair
    results = sx.generate(
        target,
        ["def main():\n", "import os\n", "    def __init__(self, name):\n"],
        drafter=sx.DraftModel(draft, 4),
        verify=verify,
        max_new_tokens=128,
        temperature=1.0,
        seed=[0, 1, 2],
        eos_ids=(),
    )
    assert np.mean([result.stats.block_efficiency for result in results]) > 1.8


def test_a_second_load_compiles_nothing_again(pair):
    target, _ = pair

    def run():
        return sx.generate(
            target, "def f(", drafter=sx.DraftModel(sx.load("demo-draft")), max_new_tokens=8
        )

    assert run().stats.compile_seconds > 0
    assert run().stats.compile_seconds == 0


def test_what_is_missing_is_named(monkeypatch):
    def find(name):
        raise ImportError(name=name)

    monkeypatch.setattr(load_module, "import_module", find)
    with pytest.raises(LoadError) as error:
        sx.load("demo")
    assert "safetensors" in error.value.problem
    assert "speculax[models]" in error.value.hint


def test_a_model_of_the_same_kind_in_a_file(tmp_path):
    for name in ("demo-draft.safetensors", "tokenizer.json"):
        (tmp_path / name).write_bytes((WEIGHTS / name).read_bytes())
    path = tmp_path / "mine.safetensors"
    (tmp_path / "demo-draft.safetensors").rename(path)
    model = sx.load(path)
    assert model.name == "mine"
    assert model.tokenizer == sx.load("demo").tokenizer
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(LoadError, match=r"tokenizer.json cannot be read"):
        sx.load(path)
    path.write_bytes(b"")
    with pytest.raises(LoadError, match="is not a file of weights"):
        sx.load(path)
    with pytest.raises(LoadError, match=r"missing.safetensors"):
        sx.load(tmp_path / "missing.safetensors")
