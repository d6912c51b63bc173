"""What a prompt may look like, and that every bad argument is refused by name before any work."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import speculax as sx
from tests import toy


class Untouchable(toy.Markov):
    """Fails if anything is asked of it but its sizes."""

    def init_cache(self, batch_size, num_slots):
        raise AssertionError("work was done")


@dataclass
class Letters:
    """A tokenizer whose ids are letters, the id 0 first; it leaves 0 and 7 out of texts."""

    def encode(self, text):
        return [0, *("_abcdef_".index(letter) for letter in text)]

    def decode(self, ids):
        return "".join("_abcdef_"[i] for i in ids).replace("_", "")


BAD = {
    "a string without a tokenizer": (["abc"], {}, r"prompt 0 .*tokenizer"),
    "a string later in a list": ([[[1], "abc"]], {}, r"prompt 1 .*tokenizer"),
    "an id too large": ([[1, 8]], {}, r"prompt 0 .*0 to 7.*8"),
    "an id below 0": ([[1, -1]], {}, r"prompt 0 .*0 to 7.*-1"),
    "an id of the second prompt": ([[[1], [2, 99]]], {}, r"prompt 1 .*99"),
    "an empty prompt": ([[[1], []]], {}, r"prompt 1 .*at least one"),
    "an empty array": ([np.zeros(0, np.int32)], {}, r"prompt 0 .*at least one"),
    "floats": ([[1.0, 2.0]], {}, r"prompt 0 .*integer"),
    "an array of floats": ([np.ones(3)], {}, r"prompt 0 .*integer.*float64"),
    "a number": ([[[[1, 2]]]], {}, r"prompt 0 .*\(1, 2\)"),
    "a cap below 0": ([[1]], {"max_new_tokens": -1}, r"max_new_tokens .*at least 0.*-1"),
    "half a token": ([[1]], {"max_new_tokens": 1.5}, r"max_new_tokens .*integer.*1.5"),
    "two caps for one prompt": ([[1]], {"max_new_tokens": [1, 2]}, r"max_new_tokens .*2 values"),
    "one cap in a list for two": ([[[1], [2]]], {"max_new_tokens": [1]}, r"max_new_tokens .*1 val"),
    "one bad cap of two": ([[[1], [2]]], {"max_new_tokens": [3, -3]}, r"max_new_tokens .*-3"),
    "a temperature below 0": ([[1]], {"temperature": -0.1}, r"temperature .*at least 0.*-0.1"),
    "a temperature that is none": ([[1]], {"temperature": np.nan}, r"temperature .*nan"),
    "an infinite temperature": ([[1]], {"temperature": np.inf}, r"temperature .*inf"),
    "too many temperatures": ([[1]], {"temperature": [0.5, 1.0]}, r"temperature .*2 values"),
    "a seed below 0": ([[1]], {"seed": -1}, r"seed .*at least 0 and at most 4294967295.*-1"),
    "a seed too large": ([[1]], {"seed": 2**32}, r"seed .*at most 4294967295.*4294967296"),
    "a seed between": ([[1]], {"seed": 0.5}, r"seed .*integer.*0.5"),
    "a seed that is none": ([[1]], {"seed": np.nan}, r"seed .*nan"),
    "too few seeds": ([[[1], [2]]], {"seed": [1]}, r"seed .*2 prompts.*1 values"),
    "an infinite cap": ([[1]], {"max_new_tokens": np.inf}, r"max_new_tokens .*inf"),
    "no temperature": ([[1]], {"temperature": None}, r"temperature .*None"),
    "a word for a number": ([[1]], {"temperature": "hot"}, r"temperature .*hot"),
    "a temperature beyond float32": ([[1]], {"temperature": 1e39}, r"temperature .*1e.30.*1e.39"),
    "one end token, not a list": ([[1]], {"eos_ids": 3}, r"eos_ids .*list.*3"),
    "half an end token": ([[1]], {"eos_ids": [1.7]}, r"eos_ids .*1.7"),
    "no prompt": ([None], {}, r"prompt must be .*None"),
    "a bare number": ([3], {}, r"prompt must be .*3"),
    "more than the context": ([[1] * 500], {"max_new_tokens": 13}, r"500.*13.*513.*512"),
    "a prompt of more": ([[1] * 513], {"max_new_tokens": 0}, r"513.*512"),
}  # fmt: skip


@pytest.mark.parametrize("call", [sx.generate, sx.stream])
@pytest.mark.parametrize(("args", "kwargs", "message"), BAD.values(), ids=BAD.keys())
def test_bad_arguments_are_refused_by_name_before_any_work(call, args, kwargs, message):
    model = toy.model(Untouchable(), toy.cycle_logits(), name="toy")
    with pytest.raises(ValueError, match=message) as caught:
        call(model, *args, drafter=sx.NGram(3), **kwargs)
    text = str(caught.value)
    assert "\n" not in text
    assert text.endswith(".")


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"draft_length": -1}, r"draft_length .*from 0 to 512.*-1"),
        ({"max_ngram": 0}, r"max_ngram .*from 1 to 32.*0"),
    ],
)
def test_an_n_gram_drafter_refuses_bad_lengths(kwargs, message):
    with pytest.raises(ValueError, match=message):
        sx.NGram(**kwargs)


def test_a_prompt_may_fill_the_context_to_the_last_position():
    """Drafts do not overrun it: near the end they are cut."""
    network = toy.Markov(context_length=40)
    prompt = [i % 8 for i in range(30)]
    [drafted] = sx.generate(
        toy.cycle(network), [prompt], drafter=sx.NGram(7), max_new_tokens=10, eos_ids=()
    )
    assert drafted.tokens.tolist() == [(30 + i) % 8 for i in range(10)]
    assert drafted.stats.drafted == drafted.stats.accepted < 10
    with pytest.raises(ValueError, match="41 in all"):
        sx.generate(toy.cycle(network), [prompt], max_new_tokens=11)


@pytest.mark.parametrize(
    "prompt",
    [
        pytest.param([1, 2, 3], id="list"),
        pytest.param((1, 2, 3), id="tuple"),
        pytest.param(np.array([1, 2, 3]), id="int64"),
        pytest.param(np.array([1, 2, 3], np.uint8), id="uint8"),
        pytest.param([np.int32(1), np.int32(2), np.int32(3)], id="list of NumPy integers"),
        pytest.param(jnp.array([1, 2, 3], jnp.int32), id="jax"),
    ],
)
def test_one_prompt_in_one_result_out(prompt):
    model = toy.cycle()
    single = sx.generate(model, prompt, max_new_tokens=6)
    assert isinstance(single, sx.Generation)
    assert single.tokens.tolist() == [4, 5, 6, 7, 0, 1]
    assert single.tokens.dtype == np.int32
    assert single.accepted.dtype == bool
    assert single.text is None
    [listed] = sx.generate(model, [prompt], max_new_tokens=6)
    assert listed.tokens.tolist() == single.tokens.tolist()


@pytest.mark.parametrize(
    "prompts",
    [
        pytest.param([[1], [2]], id="lists"),
        pytest.param(([1], (2,)), id="a tuple of both"),
        pytest.param(np.array([[1], [2]]), id="NumPy rows"),
        pytest.param(jnp.array([[1], [2]], jnp.int32), id="jax rows"),
    ],
)
def test_a_list_in_a_list_out(prompts):
    results = sx.generate(toy.cycle(), prompts, max_new_tokens=2)
    assert [result.tokens.tolist() for result in results] == [[2, 3], [3, 4]]


def test_no_prompts_no_results_and_no_work():
    model = toy.model(Untouchable(), toy.cycle_logits())
    assert sx.generate(model, [], drafter=sx.NGram()) == []
    stream = sx.stream(model, [])
    assert list(stream) == []
    assert stream.results() == []


def test_text_in_new_text_out():
    model = toy.cycle(tokenizer=Letters(), eos_ids=(7,))
    one = sx.generate(model, "abc", max_new_tokens=2)
    assert (one.text, one.stop_reason) == ("de", "length")
    ended, by_ids = sx.generate(model, ["c", [1, 2]], max_new_tokens=10)
    assert (ended.text, ended.stop_reason) == ("def", "eos")
    assert by_ids.text == "cdef"
    # The end token belongs to the tokens, not to the text; all are cut at the same place.
    assert ended.tokens.tolist() == [4, 5, 6, 7]
    assert len(ended.accepted) == ended.stats.emitted == 4


def test_a_request_for_no_tokens_has_what_was_asked_for():
    result = sx.generate(
        toy.cycle(), [1], drafter=sx.NGram(3), max_new_tokens=0, log_probs=2, record=True
    )
    assert [part.shape for part in result.log_probs] == [(0,), (0,), (0, 2), (0, 2)]
    assert result.record.target_probs.shape == (0, 3)
    assert result.record.candidates.shape == (0, 8)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"stop_ids": [-(2**40)]}, "stop_ids must be a list of token ids, 0 or more"),
        ({"eos_ids": [-1]}, "eos_ids must be a list of token ids, 0 or more"),
        ({"logit_bias": {True: 1.0}}, "logit_bias must be for token ids .*True"),
        ({"log_probs": True}, "log_probs must be an integer .*True"),
        ({"costs": (1.0, 2.0)}, "costs must be None or StepCosts"),
        ({"seed": jax.random.key(0)}, "seed must be a number, got a key"),
    ],
)
def test_what_looks_like_a_number_is_refused_too(kwargs, message):
    with pytest.raises(ValueError, match=message):
        sx.generate(toy.cycle(), [1], **kwargs)


@pytest.mark.parametrize("model", ["demo", toy.Markov()], ids=["name", "network"])
def test_what_is_no_model_is_refused(model):
    with pytest.raises(ValueError, match="model must be a Model, as "):
        sx.generate(model, [1])


class Nothing:
    """A drafter that has nothing to say."""

    draft_length = 0

    def init(self, tokens, lengths):
        raise AssertionError

    propose = init


def test_a_drafter_of_no_tokens_is_not_asked():
    plain = sx.generate(toy.cycle(), [1], max_new_tokens=9)
    for drafter in (Nothing(), sx.NGram(0)):
        result = sx.generate(toy.cycle(), [1], drafter=drafter, max_new_tokens=9)
        assert result.tokens.tolist() == plain.tokens.tolist()


def test_each_request_has_its_own_cap():
    results = sx.generate(toy.cycle(), [[1], [1]], max_new_tokens=np.array([1, 3]))
    assert [result.tokens.tolist() for result in results] == [[2], [2, 3, 4]]


def test_settings_may_be_numpy_or_jax_scalars():
    model = toy.model(toy.Markov(), toy.random_logits(toy.Markov()))
    usual = {"max_new_tokens": 6, "temperature": 0.5, "seed": 2**32 - 1}
    wanted = sx.generate(model, [1, 2], drafter=sx.NGram(3), **usual)
    given = {
        "max_new_tokens": jnp.int32(6),
        "temperature": np.float16(0.5),
        "seed": jnp.uint32(2**32 - 1),
    }
    result = sx.generate(model, [1, 2], drafter=sx.NGram(np.int64(3)), **given)
    np.testing.assert_array_equal(result.tokens, wanted.tokens)
    assert result.seed == 2**32 - 1
