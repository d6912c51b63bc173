"""Rules replayed on a record agree with what the rules do when they are run."""

import jax
import numpy as np
import pytest

import speculax as sx
from speculax.replay import Recording, record, replay
from tests import toy
from tests.loop.conftest import _little_effort as _little_effort

NETWORK = toy.Markov()
TARGET = toy.model(NETWORK, toy.random_logits(NETWORK), tokenizer=None)
DRAFTER = sx.DraftModel(toy.model(NETWORK, 0.5 * toy.random_logits(NETWORK, seed=1)), 3)


@pytest.fixture(scope="module")
def recording():
    prompts = [[i % 8] for i in range(80)]
    jax.config.update("jax_disable_most_optimizations", True)  # undone by each test
    return record(TARGET, prompts, DRAFTER, max_new_tokens=24, temperature=1.0, seed=0)


@pytest.mark.parametrize(
    "rule",
    ["block", *(pytest.param(rule, marks=pytest.mark.slow) for rule in ("token", "sampled"))],
)
def test_what_a_rule_is_said_to_keep_is_what_it_keeps_when_it_is_run(rule, recording):
    """The toy's steps start from all states alike, so runs visit them alike; 4 errors allowed."""
    estimate = replay(recording)[rule]
    results = sx.generate(
        TARGET,
        [[i % 8] for i in range(400)],
        drafter=DRAFTER,
        verify=rule,
        max_new_tokens=40,
        temperature=1.0,
        seed=range(1000, 1400),
    )
    accepted = np.array([result.stats.accepted / result.stats.steps for result in results])
    error = np.hypot(accepted.std() / 20, (estimate.high - estimate.low) / 4)
    assert abs(accepted.mean() - estimate.mean) < 4 * error + 0.02  # the last step may be cut


def test_the_order_of_the_rules(recording):
    estimates = {rule: estimate.mean for rule, estimate in replay(recording).items()}
    assert estimates["sampled"] < estimates["token"] < estimates["block"] < estimates["ideal"] < 3
    gain = replay(recording)["block less token"]
    np.testing.assert_allclose(gain.mean, estimates["block"] - estimates["token"])
    assert 0 < gain.low < gain.mean < gain.high


def test_intervals_cover_the_mean_of_many_texts(recording):
    """Halves of the texts: the mean of one is in the interval of the other, but for bad luck."""
    half = recording.requests < 40
    first = recording._replace(
        target_probs=recording.target_probs[half],
        draft_probs=recording.draft_probs[half],
        requests=recording.requests[half],
    )
    estimate, other = replay(first)["block"], replay(recording)["block"]
    assert estimate.low < other.mean < estimate.high
    assert other.high - other.low < estimate.high - estimate.low


def test_a_record_is_read_as_it_was_written(recording, tmp_path):
    path = tmp_path / "run.npz"
    recording._replace(info={"target": "toy"}).save(path)
    read = Recording.load(path)
    assert read.info == {"target": "toy"}
    np.testing.assert_array_equal(read.target_probs, recording.target_probs)
    assert replay(read) == replay(recording)


def test_other_files_are_no_records(tmp_path):
    np.savez(tmp_path / "other.npz", a=np.zeros(3))
    (tmp_path / "text").write_text("hello")
    (tmp_path / "empty").write_bytes(b"")
    whole = (tmp_path / "other.npz").read_bytes()
    (tmp_path / "cut").write_bytes(whole[:100])
    (tmp_path / "method").write_bytes(whole.replace(b"PK\x03\x04\x14\0", b"PK\x03\x04\xff\0"))
    np.savez_compressed(tmp_path / "packed", info=np.arange(1000))
    packed = bytearray((tmp_path / "packed.npz").read_bytes())
    packed[packed.index(b"info.npy") + 40] ^= 255
    (tmp_path / "flipped").write_bytes(packed)
    for name in ("other.npz", "text", "empty", "cut", "method", "flipped"):
        with pytest.raises(ValueError, match="must be a record made by --record"):
            Recording.load(tmp_path / name)


def test_a_request_without_steps_is_left_out_of_the_intervals(recording):
    """It says nothing of how many tokens are accepted in a step."""
    kept = recording.requests > 0
    parts = (recording.target_probs, recording.draft_probs, recording.requests)
    without = recording._replace(
        **dict(zip(recording._fields, (part[kept] for part in parts), strict=False))
    )
    assert replay(without)["token"].low > 0.5 * replay(recording)["token"].low
