"""What becomes of drafts: with a drafter that is the target, all of them are kept."""

from typing import NamedTuple

import numpy as np

from speculax.conformance.candidate import Candidate
from speculax.conformance.explain import explain
from speculax.conformance.generate.call import Recorder, run
from speculax.conformance.generate.form import make_call
from speculax.conformance.generate.laws import EQUAL, VOCAB, Laws
from speculax.conformance.pasting import writing
from speculax.conformance.report import Failure, Level, Outcome

SEEDS, LENGTH = 400, 12
# A loop may compare drafts with tokens of the target's own: it refuses as often as chance has it.
# Of all places of a text, and of those that are known to have had a draft, the shares of chance
# that are taken for it. Such loops have 0.68 and 0.73 at least; of the mutants that are to be told
# from them, each has less of one: 0.55 of all places, or 0.67 of those with drafts, at most.
OF_ALL, OF_DRAFTED = 0.62, 0.69


class Seen(NamedTuple):
    """What the texts that rows were asked for tell about the drafts.

    Attributes:
        places: Places of texts that were looked at.
        refused: Of them, those where a row after another token was asked for.
        chance: How many would be, if the text knew nothing of the drafts, and each place had one.
        drafted: The same for the places that are known to have had one.
        drafts: Whether the drafter was asked at all.
    """

    places: int
    refused: int
    chance: float
    drafted: float
    drafts: bool

    @property
    def is_chance(self) -> bool:
        """Whether drafts and text agree no better than by chance."""
        return self.refused > max(OF_ALL * self.chance, OF_DRAFTED * self.drafted)


def watch(candidate: Candidate, laws: Laws, seeds: range) -> Seen:
    """Let a loop run, and see which drafts are refused."""
    places, chance, drafted, drafts = 0, 0.0, 0.0, False
    refused = np.zeros(2, int)  # as the target sees it, and as the drafter does
    for seed in seeds:
        target, drafter = Recorder(laws.target), Recorder(laws.drafter)
        call = make_call([seed % VOCAB], LENGTH, seed)._replace(target=target, drafter=drafter)
        text = (*call.prompt, *run(candidate, call))
        drafts = drafts or bool(drafter.asked)
        for place in range(len(call.prompt), len(text)):
            before = text[:place]
            others = [_has_other(one.asked, text, place) for one in (target, drafter)]
            refused += others
            places += 1
            by_chance = 1 - float(np.square(laws.target(before)).sum())
            chance += by_chance
            drafted += by_chance if any(others) or before in drafter.asked else 0
    # A loop that asks the target no further than it must shows it no draft that is refused.
    return Seen(places, int(refused[0] or refused[1]), chance, drafted, drafts)


def _has_other(asked: list[tuple[int, ...]], text: tuple[int, ...], place: int) -> bool:
    """Whether a row was asked for that follows the text so far, and another token at a place."""
    return any(
        ids[:place] == text[:place] and ids[place] != text[place]
        for ids in asked
        if len(ids) > place
    )


def check_acceptance(candidate: Candidate, rule: str, level: Level) -> Outcome:
    """Where drafter and target agree no draft is refused; that drafts are used at all is noted."""
    del rule, level
    try:
        seen = watch(candidate, EQUAL, range(SEEDS))
    except Exception as error:
        return Outcome(1, [explain(candidate, error, "a drafter that is the target")])
    if not seen.drafts:
        return Outcome(1, notes=["the drafter is never asked: this is plain sampling"])
    if seen.refused == 0:
        return Outcome(seen.places)
    if seen.is_chance:
        note = (
            "with a drafter that is the target, drafts agree with the text as often as chance has "
            "it: they are compared with tokens of the target's own, or never accepted; the text "
            "may still follow the law, but fewer drafts are kept than could be"
        )
        return Outcome(seen.places, notes=[note])
    failure = Failure(
        "with a drafter that is the target, drafts are refused",
        f"0 of {seen.places} places",
        f"{seen.refused} of {seen.places} places",
        _snippet(candidate),
        "Equal rows always pass (u < 1). Draft token i + 1 must be drawn after draft token i, and "
        "the first after the whole text, the last bonus token included; row i of the target judges "
        "draft token i.",
    )
    return Outcome(seen.places, [failure])


def _snippet(candidate: Candidate) -> str:
    """The first text with a refusal, and what was refused."""
    seeds = (range(seed, seed + 1) for seed in range(SEEDS))
    seed = next(one for one in seeds if watch(candidate, EQUAL, one).refused).start
    name, prompt = candidate.origin.rpartition(":")[2], seed % VOCAB
    call = f"{name}(target, EQUAL.drafter, [{prompt}], {LENGTH}, None, {seed})"
    return "\n".join(
        [
            "from speculax.conformance.generate.laws import EQUAL",
            writing(candidate).imports[1],
            "",
            "asked = []",
            "",
            "",
            "def target(ids):",
            "    asked.append(tuple(ids))",
            "    return EQUAL.target(ids)",
            "",
            "",
            f"text = ({prompt}, *{call})",
            "refused = [ids for ids in asked if ids[: len(text)] != text[: len(ids)]]",
            "print(text, refused)",
        ]
    )
