"""Rates from counts; each has one name, and none is made up where nothing was counted."""

import dataclasses
import math

import pytest

import speculax as sx

STATS = sx.Stats(
    steps=4,
    drafted=10,
    accepted=6,
    emitted=10,
    drafted_by_position=(4, 4, 2, 0),
    accepted_by_position=(3, 2, 1, 0),
    tested_by_position=(4, 3, 1, 0),
    prefill_seconds=0.5,
    decode_seconds=2.0,
    compile_seconds=30.0,
    host_seconds=0.1,
    time_to_first_token=0.75,
)


def test_rates():
    assert STATS.acceptance_rate == 0.6
    assert STATS.block_efficiency == 2.5  # the drawn token included
    assert STATS.tokens_per_second == 5.0  # neither prefill nor compilation
    *rates, last = STATS.acceptance_by_position
    assert rates == [0.75, 0.5, 0.5]
    assert math.isnan(last)
    *rates, last = STATS.conditional_acceptance
    assert rates == [0.75, 2 / 3, 1.0]
    assert math.isnan(last)


def test_without_drafts_there_is_no_acceptance_rate():
    stats = dataclasses.replace(
        STATS, drafted=0, accepted=0, drafted_by_position=(), accepted_by_position=()
    )
    assert math.isnan(stats.acceptance_rate)
    assert stats.acceptance_by_position == ()
    assert stats.block_efficiency == 2.5


def test_before_the_first_step_there_are_no_rates():
    stats = dataclasses.replace(
        STATS, steps=0, drafted=0, accepted=0, emitted=0, decode_seconds=0.0
    )
    assert math.isnan(stats.block_efficiency)
    assert math.isnan(stats.tokens_per_second)


def test_positions_that_do_not_match_are_an_error():
    stats = dataclasses.replace(STATS, accepted_by_position=(1,))
    with pytest.raises(ValueError, match="zip"):
        _ = stats.acceptance_by_position


def test_stats_do_not_change():
    with pytest.raises(dataclasses.FrozenInstanceError):
        STATS.steps = 5
