"""An eager check of what a verifier cannot check inside `jit`: the values it is given."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from speculax.flat_laws import SETTINGS
from speculax.laws import Law, as_law, flat_draft_law, flat_law_with_settings
from speculax.verify.inputs import as_arguments

# Rows of bfloat16 probabilities are off by up to 0.5 %.
ROW_SUM_TOLERANCE = 0.01


def check_inputs(
    draft_tokens: ArrayLike,
    draft_probs: ArrayLike | Law | None,
    target_probs: ArrayLike | Law,
    accept_uniforms: ArrayLike,
    sample_uniforms: ArrayLike,
    *,
    draft_lengths: ArrayLike | None = None,
) -> None:
    """Check the values given to a verifier. For debugging; runs on the host, on concrete arrays.

    Args:
        draft_tokens: As for `verify_token`, and so are the others; ids in [0, V).
        draft_probs: Rows that sum to 1 and give their draft token a positive probability; or a
            `Law` with settings in range, rows of finite logits (-inf apart), and the same.
        target_probs: Rows that sum to 1; or a `Law` with settings in range and such logits.
        accept_uniforms: In [0, 1).
        sample_uniforms: In [0, 1).
        draft_lengths: In [0, G]. What lies beyond them is not checked.

    Raises:
        ValueError: If shapes disagree, or with one line for each kind of wrong value: which
            argument, where first, what was found and what to do.
        TypeError: If ids are not integers, or probabilities or uniforms not floating.
    """
    arguments = as_arguments(
        draft_tokens, draft_probs, target_probs, accept_uniforms, sample_uniforms, draft_lengths
    )
    tokens = np.asarray(arguments.draft_tokens)
    batch, length = tokens.shape
    vocab_size = arguments.target_probs.shape[2]
    problems = _Problems()

    lengths = np.full(batch, length)
    if arguments.draft_lengths is not None:
        lengths = np.asarray(arguments.draft_lengths)
        outside = (lengths < 0) | (lengths > length)
        problems.add("draft_lengths", lengths, outside, f"0 to {length}", "count the draft tokens")
        lengths = np.clip(lengths, 0, length)
    is_drafted = np.arange(length) < lengths[:, None]

    is_outside = is_drafted & ((tokens < 0) | (tokens >= vocab_size))
    hint = "leave out missing drafts with draft_lengths"
    problems.add("draft_tokens", tokens, is_outside, f"an id from 0 to {vocab_size - 1}", hint)

    for name, array, is_used in (
        ("accept_uniforms", arguments.accept_uniforms, is_drafted),
        ("sample_uniforms", arguments.sample_uniforms, np.ones(batch, bool)),
    ):
        uniforms = np.asarray(array)
        is_wrong = is_used & ~((uniforms >= 0) & (uniforms < 1))
        hint = "draw it with jax.random.uniform"
        problems.add(name, uniforms, is_wrong, "a number in [0, 1)", hint)

    is_read = np.arange(length + 1) <= lengths[:, None]
    problems.add_law("target_probs", as_law("target_probs", arguments.target_probs), is_read)

    if arguments.draft_probs is not None and length > 0:
        draft = as_law("draft_probs", arguments.draft_probs)
        problems.add_ids("the ids of draft_probs", draft, vocab_size)
        problems.add_law("draft_probs", draft, is_drafted)
        ids = np.clip(tokens, 0, vocab_size - 1).astype(np.int32)
        chosen = _probabilities(draft, ids)
        problems.add(
            "the draft probability of draft_tokens",
            chosen,
            is_drafted & ~is_outside & (chosen == 0),
            "more than 0",
            "pass the law the token was sampled from, after every filter",
        )
    if problems.lines:
        raise ValueError("\n".join(problems.lines))


def _probabilities(law: Law, ids: np.ndarray) -> np.ndarray:
    """The probability of each id (B, G) in its row."""
    flat = flat_draft_law(law.normalize())
    rows = jnp.arange(ids.size, dtype=jnp.int32)
    normalizers = jax.vmap(flat.normalizer)(rows)
    return np.asarray(flat.at(rows, jnp.asarray(ids.ravel()), normalizers)).reshape(ids.shape)


class _Problems:
    """What is wrong, a line for each kind."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def add(
        self, name: str, values: np.ndarray, is_wrong: np.ndarray, expected: str, hint: str
    ) -> None:
        places = np.argwhere(is_wrong)
        if len(places):
            first = tuple(places[0].tolist())
            self.lines.append(
                f"{name}[{', '.join(map(str, first))}] is {values[first].item()}, expected "
                f"{expected} ({len(places)} such); {hint}."
            )

    def add_law(self, name: str, law: Law, is_read: np.ndarray) -> None:
        table = np.asarray(law.table, np.float64)
        if not law.is_logits:
            return self.add_rows(name, table, is_read)
        is_wrong = is_read[:, :, None] & (np.isnan(table) | np.isposinf(table))
        hint = "look for NaN in the model"
        self.add(f"the logits of {name}", table, is_wrong, "a finite logit or -inf", hint)
        flat = flat_law_with_settings(law)
        for setting, (holds, words) in SETTINGS.items():
            values = getattr(flat, setting)
            if values is not None:
                values = np.asarray(values).reshape(is_read.shape)
                is_wrong = is_read & ~holds(values)
                self.add(f"the {setting} of {name}", values, is_wrong, words, "change the setting")
        if not self.lines:
            totals = np.asarray(jax.vmap(flat.normalizer)(jnp.arange(flat.num_rows)).total)
            is_wrong = is_read & ~(totals.reshape(is_read.shape) > 0)
            hint = "allow at least one token"
            self.add(f"the mass of {name}", totals.reshape(is_read.shape), is_wrong, "some", hint)
        return None

    def add_ids(self, name: str, law: Law, vocab_size: int) -> None:
        if law.ids is None:
            return
        ids = np.asarray(law.ids)
        is_outside = (ids < -1) | (ids >= vocab_size)
        self.add(name, ids, is_outside, f"an id below {vocab_size}, or -1", "leave it out")
        order = np.argsort(ids, axis=-1, kind="stable")
        ordered = np.take_along_axis(ids, order, axis=-1)
        again = np.zeros(ids.shape, bool)
        is_again = (ordered[..., 1:] == ordered[..., :-1]) & (ordered[..., 1:] >= 0)
        np.put_along_axis(again, order[..., 1:], is_again, axis=-1)
        self.add(name, ids, again, "ids once in a row", "add their probabilities up")

    def add_rows(self, name: str, probs: np.ndarray, is_read: np.ndarray) -> None:
        is_negative = is_read[:, :, None] & (probs < 0)
        is_unbounded = is_read[:, :, None] & ~np.isfinite(probs)
        hint = "pass probabilities, not logits: apply jax.nn.softmax first"
        self.add(name, probs, is_negative, "a probability", hint)
        self.add(name, probs, is_unbounded, "a finite probability", "look for NaN in the model")
        is_summable = is_read & ~(is_negative | is_unbounded).any(axis=2)
        sums = np.where(is_summable[:, :, None], probs, 0).sum(axis=2)
        is_off = is_summable & (np.abs(sums - 1) > ROW_SUM_TOLERANCE)
        hint = "normalise the row, for example with jax.nn.softmax"
        self.add(f"the sum of {name}", sums, is_off, "1", hint)
