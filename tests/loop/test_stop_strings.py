"""Strings that end a text, wherever they begin and end in tokens, runs of drafts and chunks.

Faults seen in public: a cap checked before an earlier stop string; text cut at a stop string but
not its tokens, log-probabilities and counters; a stop string shown in part while streaming; one
that is missed because it begins in one token and ends in the next.
"""

import numpy as np
import pytest

import speculax as sx
from speculax.stop_strings import StopStrings
from tests import toy

PIECES = ["a", "b", "cd", "d", "e", "f", "g\n", "\nh", "i", "jj", "j", "k", "l", "m", "n", "o"]


class Pieces:
    """A tokenizer of a few strings, which knows how to decode only."""

    def encode(self, text):
        raise NotImplementedError

    def decode(self, ids):
        return "".join(PIECES[i] for i in ids)


COUNTING = toy.cycle(toy.Markov(vocab_size=16), tokenizer=Pieces())
PERFECT = toy.perfect_drafter(toy.cycle_logits(16))


def run(prompts, **kwargs):
    kwargs = {"drafter": PERFECT, "max_new_tokens": 14, "log_probs": 1, "record": True} | kwargs
    kwargs["seed"] = 0
    return sx.generate(COUNTING, [[prompt] for prompt in prompts], **kwargs)


def outcome(result):
    """All but text and times."""
    stats = result.stats
    counts = stats.steps, stats.drafted_by_position, stats.accepted_by_position
    arrays = [result.tokens, result.accepted, *result.log_probs, *result.record]
    return result.stop_reason, counts, [np.nan_to_num(array, nan=-1.0).tolist() for array in arrays]


@pytest.mark.parametrize(
    ("stop", "first", "last", "before"),
    [
        pytest.param("f", 5, 5, "e", id="a token"),
        pytest.param("e", 4, 4, "d", id="of one character"),
        pytest.param("cdd", 2, 3, "b", id="of two tokens"),
        pytest.param("dde", 2, 4, "bc", id="from inside a token"),
        pytest.param("\n\n", 6, 7, "g", id="of halves of tokens"),
        pytest.param("jjj", 9, 10, "i", id="of equal characters"),
    ],
)
def test_all_ends_where_the_string_is_complete(stop, first, last, before):
    """As with the token that completes it as a stop id, which the loop itself looks out for."""
    prompts = [(first - 2 - back) % 16 for back in range(8)]  # at each place in a run
    stopped = run(prompts, stop=stop)
    for one, other in zip(stopped, run(prompts, stop_ids=[last]), strict=True):
        assert one.stop_reason == "stop"
        assert outcome(one) == outcome(other)
        whole = COUNTING.tokenizer.decode(other.tokens)
        assert one.text == whole[: whole.index(stop)]
        assert one.text.endswith(before)


def test_the_first_of_several_counts():
    [result] = run([0], stop=["k", "f", "ef"])
    assert (result.text, result.tokens[-1]) == ("bcdd", 5)
    each = run([0, 0, 0], stop=[["k"], [], ["ghost", "b"]])
    assert [result.text for result in each] == [
        "bcddefg\n\nhijjj",
        "bcddefg\n\nhijjjklmn",
        "",
    ]
    assert [result.stop_reason for result in each] == ["stop", "length", "stop"]


@pytest.mark.parametrize(
    ("cap", "stop", "reason"), [(5, "e", "stop"), (4, "e", "stop"), (3, "e", "length")]
)
def test_the_cap_counts_only_if_it_comes_first(cap, stop, reason):
    [result] = run([0], stop=stop, max_new_tokens=cap)
    assert (result.stop_reason, len(result.tokens)) == (reason, min(cap, 4))


def test_an_end_token_before_the_string_ends_the_text_as_one():
    [result] = run([0], stop="f", eos_ids=[3])
    assert (result.stop_reason, result.text) == ("eos", "bcdd")


def test_a_stream_never_shows_a_part_of_a_stop_string():
    stream = sx.stream(COUNTING, [[0]], stop=["defx", "ijjj"], max_new_tokens=11)
    shown = [new.text for chunk in stream for new in chunk]
    [result] = stream.results()
    assert result.stop_reason == "stop"
    assert "".join(shown) == result.text == "bcddefg\n\nh"
    assert shown[0] == "bcd"  # "de" may be the beginning of a stop string


class Halves(Pieces):
    """Its token 5 is a stop string and half a character."""

    def decode(self, ids):
        return super().decode(ids).replace("f", "stop\ufffd")


def test_a_string_that_is_complete_only_at_the_very_end():
    model = toy.cycle(toy.Markov(vocab_size=16), tokenizer=Halves())
    result = sx.generate(model, [3], max_new_tokens=2, stop="stop")
    assert (result.text, result.stop_reason) == ("e", "stop")


@pytest.mark.parametrize("seed", range(40))
def test_pieces_do_not_matter(seed):
    """Against a search in the whole text."""
    rng = np.random.default_rng(seed)
    text = "".join(rng.choice(list("ab"), 40))
    stops = ["".join(rng.choice(list("ab"), rng.integers(1, 7))) for _ in range(3)]
    cuts = np.sort(rng.integers(0, 41, 12))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, 40], strict=True)]
    finder, given, over = StopStrings(stops), "", False
    for piece in pieces:
        new, over = finder.push(piece)
        given += new
        if over:
            break
        assert all(stop not in given for stop in stops)
    ends = [text.find(stop) + len(stop) for stop in stops if stop in text]
    assert over == bool(ends)
    if not over:
        assert given + finder.flush() == text
        return
    # The piece in which the first string was complete, and the earliest of those in it.
    seen = "".join(pieces)[: next(n for n in np.cumsum(list(map(len, pieces))) if n >= min(ends))]
    assert given == seen[: min(seen.find(stop) for stop in stops if stop in seen)]
