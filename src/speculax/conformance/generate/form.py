"""The form of a generation loop: what it takes, what it returns, and what its seed does."""

from collections.abc import Iterator

from speculax.conformance.candidate import Candidate
from speculax.conformance.explain import explain
from speculax.conformance.generate.call import Call, as_list, run, snippet
from speculax.conformance.generate.laws import UNLIKE, VOCAB
from speculax.conformance.parts import run_parts, unless
from speculax.conformance.report import Failure, Level, Outcome

CAPS = (8, 1, 2, 5, 0)
PROMPTS = ([1], [0, 2, 3], [i * i % VOCAB for i in range(300)])
SEEDS = range(8)


def check_form(candidate: Candidate, rule: str, level: Level) -> Outcome:
    """Types, lengths, ids; the seed; prompts and limits at the ends of the contract."""
    del rule
    parts = [
        _check_result(candidate, level),
        _check_seed(candidate, level),
        _check_prompt(candidate, level),
    ]
    return run_parts(candidate, parts, [])


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
            except Exception as error:
                yield explain(candidate, error, what, shown)
                return
            yield None
            if prompt and got[: len(prompt)] == prompt and len(got) == len(prompt) + cap:
                yield Failure(
                    f"{what}: the prompt is returned too", f"{cap} new ids", as_list(got), shown
                )
                return
            if len(got) != cap:
                yield Failure(f"{what}: {len(got)} tokens", f"{cap} ids", as_list(got), shown)
                return
            outside = [i for i in got if not 0 <= i < VOCAB]
            yield unless(
                not outside, f"{what}: ids outside the vocabulary", f"0 to {VOCAB - 1}",
                as_list(got), snippet=shown,
            )  # fmt: skip
    if level == "strict":
        result = candidate(*make_call([1], 4))
        yield unless(
            isinstance(result, list), "what is returned is no list", "list", type(result).__name__
        )


def _check_seed(candidate: Candidate, level: Level) -> Iterator[Failure | None]:
    texts = []
    for seed in SEEDS:
        call = make_call([1], 12, seed)
        first, again = run(candidate, call), run(candidate, call)
        texts.append(first)
        yield unless(
            first == again,
            "the same seed gives another text the second time",
            as_list(first),
            as_list(again),
            "All noise must come from the seed, and nothing of a call may stay for the next.",
            snippet(candidate, UNLIKE.lines(), call),
        )
    yield unless(
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
            yield explain(
                candidate, error, f"seed {seed}", snippet(candidate, UNLIKE.lines(), call)
            )


def _check_prompt(candidate: Candidate, level: Level) -> Iterator[Failure | None]:
    """The caller's list stays as it is."""
    if level == "contract":
        return
    for prompt in PROMPTS[:2]:
        given = list(prompt)
        candidate(*make_call(given, 6))
        yield unless(
            given == prompt,
            "the caller's prompt is changed",
            as_list(prompt),
            as_list(given),
            "text = prompt; text += run writes into the caller's list: begin with list(prompt).",
            snippet(candidate, UNLIKE.lines(), make_call([1], 6)),
        )
