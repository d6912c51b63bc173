"""Generation as people call it: prompts in, results out; the work is done by the loop on device."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Unpack, overload

import jax
import numpy as np

from speculax.draft_length import StepCosts
from speculax.drafting import Drafter, check_drafter
from speculax.models.check import check_model, check_network
from speculax.models.model import Model
from speculax.request import Prompt, Request, Settings, is_single, read_eos_ids, read_requests
from speculax.row import Generation, NewTokens
from speculax.rules import as_rule
from speculax.scheduler import Options, make_rows, run

STEP_WIDTH = 8  # tokens that a step reads if it is deterministic, if not said otherwise
MOST_ROWS = 8  # at once, if not said otherwise
MOST_TOP = 1024  # likeliest tokens reported: a chunk keeps them for all its steps


class Arguments(Settings, total=False):
    """All keywords of `generate`; see `stream` for those that are not `Settings`."""

    drafter: Drafter | None
    verify: str | Callable[..., Any]
    eos_ids: Sequence[int] | None
    slots: int | None
    deterministic: bool
    step_width: int
    max_length: int | None
    log_probs: int | None
    record: bool
    adaptive: bool | None
    costs: StepCosts | None


@overload
def generate(
    model: Model,
    prompt: str | Sequence[int] | np.ndarray | jax.Array,
    *,
    on_tokens: Callable[[NewTokens], Any] | None = None,
    **arguments: Unpack[Arguments],
) -> Generation: ...


@overload
def generate(
    model: Model,
    prompt: list[str] | list[list[int]] | list[np.ndarray],
    *,
    on_tokens: Callable[[NewTokens], Any] | None = None,
    **arguments: Unpack[Arguments],
) -> list[Generation]: ...


def generate(
    model: Model,
    prompt: Prompt | Sequence[Prompt],
    *,
    on_tokens: Callable[[NewTokens], Any] | None = None,
    **arguments: Unpack[Arguments],
) -> Generation | list[Generation]:
    """Continue prompts with a model, faster if a drafter guesses well.

    Under a lossless rule the new tokens follow the model's law under the request's settings
    exactly, whatever the drafter proposes; greedy requests (temperature 0) get the tokens of plain
    greedy decoding, up to rounding where two logits are a tie. The loop runs on device and shows
    the host a few steps at a time. What a request gets depends on its own prompt and settings
    alone, not on its neighbours, up to rounding.

    A call compiles if it is the first with its number of rows, range of lengths, rule, kind of
    drafter and kinds of settings in use; new values of settings compile nothing. Adaptive drafts
    compile each of a few widths when they are first chosen.

    Args:
        model: What `speculax.load` returns, or a `Model` of your own.
        prompt: A string, token ids, or a list of either, of any length.
        on_tokens: Called with `NewTokens` as they are made.
        **arguments: Those of `stream`: how to run, and the `Settings` of requests.

    Returns:
        A `Generation` for one prompt, a list of them for a list, in order.

    Raises:
        ValueError: If an argument is out of range, or prompt and new tokens exceed the context.
        TypeError: If a setting does not exist.
        FloatingPointError: If the model's law at some position of a single prompt has NaN, infinity
            or no mass. In a list it is that request's `error`, and the others go on.
    """
    under_way = stream(model, prompt, **arguments)
    for chunk in under_way:
        if on_tokens is not None:
            for new in chunk:
                on_tokens(new)
    results = under_way.results()
    if not is_single(prompt):
        return results
    if results[0].error is not None:
        raise FloatingPointError(results[0].error)
    return results[0]


def stream(
    model: Model,
    prompt: Prompt | Sequence[Prompt],
    *,
    drafter: Drafter | None = None,
    verify: str | Callable[..., Any] = "token",
    eos_ids: Sequence[int] | None = None,
    slots: int | None = None,
    deterministic: bool = False,
    step_width: int = STEP_WIDTH,
    max_length: int | None = None,
    log_probs: int | None = None,
    record: bool = False,
    adaptive: bool | None = None,
    costs: StepCosts | None = None,
    **settings: Unpack[Settings],
) -> "Stream":
    """Like `generate`, but hand out tokens as they are made.

    Args:
        model: What `speculax.load` returns, or a `Model` of your own.
        prompt: A string, token ids, or a list of either.
        drafter: What proposes tokens, for example `NGram()` or `DraftModel(load("demo-draft"))`;
            None for plain decoding.
        verify: The rule that judges drafts: "token", "block", "coupled", "sampled" or "greedy"; a
            lossy one by its full name, such as "lossy_typical"; or one of the `verify_*` functions,
            with settings by `functools.partial`. A function of your own with the signature of
            `verify_token`, `draft_lengths` included, is given float32 arrays. Greedy requests get
            the same text under any lossless rule. Under "coupled" and "sampled" a text is a
            function of its seed, whatever the drafter, up to rounding; "sampled" keeps few drafts
            of a drafter that draws them.
        eos_ids: Tokens that end a text; None for the model's own, () for none.
        slots: How many requests are under way at once, as rows of a batch; a row that is done is
            taken over by the next request. None for as many as there are, 8 at most.
        deterministic: Let every step read `step_width` tokens, drafts or not. With "coupled" or
            "greedy" a text is then the same bytes with speculation on or off, with any drafter and
            draft length, alone or among others: a function of the request, `slots`, `step_width`
            and the room for the longest request (`max_length`), on one machine.
        step_width: The tokens that a step reads if it is deterministic; drafts have one less.
        max_length: The most tokens of prompt and text that rows have room for; None for what the
            longest request needs.
        log_probs: Report log-probabilities of the tokens, and of so many of the likeliest in their
            place, 0 for none and at most 1024. None for neither. This costs reading all laws.
        record: Also report the probabilities of all draft tokens; this costs reading all laws.
        adaptive: Whether each request's draft length follows what becomes of its drafts, down to
            none where they do not pay. None: for drafters that cost nothing, such as n-grams, and
            where `costs` are given.
        costs: What steps cost, from `tune`, by which draft lengths adapt; only widths in it are
            used.
        **settings: See `Settings`.

    Returns:
        A `Stream`: iterate over it for lists of `NewTokens`, then ask it for `results()`.

    Raises:
        ValueError: As `generate`.
        TypeError: As `generate`.
    """
    check_model(model)
    prompts = [prompt] if is_single(prompt) else list(prompt)
    requests = read_requests(model, prompts, settings)
    rule = as_rule(verify)
    if rule.is_greedy and any(request.temperature > 0 for request in requests):
        raise ValueError(
            "verify='greedy' makes greedy texts, so temperature must be 0; to sample choose "
            "another rule, such as 'token'."
        )
    if drafter is not None:
        check_drafter(drafter, model)
        drafter = drafter if drafter.draft_length else None
    longest = max((request.limit for request in requests), default=0)
    if slots is None:
        slots = min(max(len(requests), 1), MOST_ROWS)
    _require("slots", slots, 1, "rows of a batch")
    _require("step_width", step_width, 1, "tokens that a step reads")
    size = model.network.vocab_size
    if log_probs is not None:
        _require("log_probs", log_probs, 0, "likeliest tokens", min(size, MOST_TOP))
    if max_length is not None:
        _require("max_length", max_length, longest, "tokens that the longest request may have")
    if costs is not None and not isinstance(costs, StepCosts):
        raise ValueError(f"costs must be None or StepCosts, as tune gives them, got {costs!r}.")
    if adaptive is None:
        adaptive = costs is not None or not getattr(drafter, "always_drafts", False)
    options = Options(
        drafter=drafter,
        rule=rule,
        eos_ids=read_eos_ids(model, eos_ids),
        slots=slots,
        step_width=step_width if deterministic else None,
        max_length=max_length,
        num_top=log_probs,
        record=record,
        is_adaptive=adaptive,
        costs=costs,
    )
    if requests:
        check_network(model)
    return Stream(model, requests, options)


def _require(name: str, value: Any, least: int, what: str, most: int = 2**20) -> None:
    is_integer = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not is_integer or not least <= value <= most:
        raise ValueError(
            f"{name} must be an integer from {least} to {most}, the number of {what}, got "
            f"{value!r}."
        )


class Stream:
    """A generation under way; made by `stream`. Iterate over it for lists of `NewTokens`.

    Iterating can be broken off and resumed; `results` holds what has been made so far.
    """

    def __init__(self, model: Model, requests: list[Request], options: Options) -> None:
        self._rows = make_rows(model, requests, options)
        # Not a method, lest an abandoned stream hold on to its cache.
        self._chunks = run(model, self._rows, options)

    def __iter__(self) -> Iterator[list[NewTokens]]:
        return self._chunks

    def cancel(self, request: int) -> None:
        """End a request, by its place in the list of prompts; its row is free for the next.

        Raises:
            IndexError: If there is no such request.
        """
        if request not in range(len(self._rows)):
            raise IndexError(
                f"request must be from 0 to {len(self._rows) - 1}, a place in the list of prompts, "
                f"got {request!r}."
            )
        row = self._rows[request]
        row.stop_reason = row.stop_reason or "cancelled"

    def results(self) -> list[Generation]:
        """What has been made of each request so far."""
        return [row.result() for row in self._rows]
