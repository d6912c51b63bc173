"""The form of a generation loop: what it takes, what it returns, and what its seed does."""

from collections.abc import Callable, Iterator

from speculax.conformance.candidate import Candidate, WrongFormError
from speculax.conformance.generate.call import Call, as_list, failed, run, snippet
from speculax.conformance.generate.laws import UNLIKE, VOCAB
from speculax.conformance.report import Failure, Level, Outcome

CAPS = (8, 1, 2, 5, 0)
PROMPTS = ([1], [0, 2, 3], [i * i % VOCAB for i in range(300)])
SEEDS = range(8)


def check_form(candidate: Candidate, rule: str, level: Level) -> Outcome:
    """Types, lengths, ids; the seed; prompts and limits at the ends of the contract."""
    del rule
    parts: list[Callable[[Candidate, Level], Iterator[Failure | None]]]
    parts = [_check_result, _check_seed, _check_prompt]
    checks = 0
    for part in parts:
        try:
            found = list(part(candidate, level))
        except WrongFormError as error:
            shown = snippet(candidate, UNLIKE.lines(), make_call(PROMPTS[0], CAPS[0]))
            return Outcome(checks + 1, [failed(candidate, error, "a call", shown)], stops=True)
        checks += len(found)
        failures = [failure for failure in found if failure is not None]
        if failures:  # what comes after would say the same once more
            return Outcome(checks, failures)
    return Outcome(checks)


def make_call(prompt: list[int], cap: int, seed: int = 0) -> Call:
    """A call whose text is a matter of chance."""
    return Call(UNLIKE.target, UNLIKE.drafter, prompt, cap, None, seed)


def _check_result(candidate: Candidate, level: Level) -> Iterator[Failure | None]:
    prompts = [*PROMPTS, []] if level == "strict" else PROMPTS
    for prompt in prompts:
        for cap in CAPS:
            call = make_call(prompt, cap)
            shown = snippet(candidate, UNLIKE.lines(), call)
            what = f"a prompt of {len(prompt)} tokens, max_new_tokens {cap}, no EOS"
            try:
                got = run(candidate, call)
            except WrongFormError:
                raise
            except Exception as error:
                yield failed(candidate, error, what, shown)
                return
            if prompt and got[: len(prompt)] == prompt and len(got) == len(prompt) + cap:
                yield Failure(
                    f"{what}: the prompt is returned too", f"{cap} new ids", as_list(got), shown
                )
                return
            if len(got) != cap:
                yield Failure(f"{what}: {len(got)} tokens", f"{cap} ids", as_list(got), shown)
                return
            outside = [i for i in got if not 0 <= i < VOCAB]
            yield _unless(
                not outside, f"{what}: ids outside the vocabulary", f"0 to {VOCAB - 1}",
                as_list(got), shown,
            )  # fmt: skip
    if level == "strict":
        result = candidate(*make_call([1], 4))
        yield _unless(
            isinstance(result, list), "what is returned is no list", "list", type(result).__name__
        )


def _check_seed(candidate: Candidate, level: Level) -> Iterator[Failure | None]:
    texts = []
    for seed in SEEDS:
        call = make_call([1], 12, seed)
        first, again = run(candidate, call), run(candidate, call)
        texts.append(first)
        yield _unless(
            first == again,
            "the same seed gives another text the second time",
            as_list(first),
            as_list(again),
            snippet(candidate, UNLIKE.lines(), call),
            "All noise must come from the seed, and nothing of a call may stay for the next.",
        )
    yield _unless(
        len({tuple(text) for text in texts}) > 1,
        f"{len(SEEDS)} seeds give the same text",
        "texts that differ",
        as_list(texts[0]),
        why="The seed has no say.",
    )
    large = {"contract": [], "robust": [2**31 - 1], "strict": [2**31 - 1, 2**32 - 1]}[level]
    for seed in large:
        call = make_call([1], 4, seed)
        try:
            run(candidate, call)
        except Exception as error:
            yield failed(candidate, error, f"seed {seed}", snippet(candidate, UNLIKE.lines(), call))


def _check_prompt(candidate: Candidate, level: Level) -> Iterator[Failure | None]:
    """The caller's list stays as it is."""
    if level == "contract":
        return
    for prompt in PROMPTS[:2]:
        given = list(prompt)
        candidate(*make_call(given, 6))
        yield _unless(
            given == prompt,
            "the caller's prompt is changed",
            as_list(prompt),
            as_list(given),
            snippet(candidate, UNLIKE.lines(), make_call([1], 6)),
            "text = prompt; text += run writes into the caller's list: begin with list(prompt).",
        )


def _unless(
    good: bool, what: str, expected: str, actual: str, snippet: str = "", why: str = ""
) -> Failure | None:
    return None if good else Failure(what, expected, actual, snippet, why)
