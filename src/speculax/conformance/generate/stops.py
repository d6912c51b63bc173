"""Where texts end, and greedy texts: stages without chance."""

from speculax.conformance.candidate import Candidate
from speculax.conformance.explain import explain
from speculax.conformance.generate.call import as_list, run, snippet
from speculax.conformance.generate.scripts import chains, stopping
from speculax.conformance.report import Failure, Level, Outcome

WHY = {
    "the text ends with an accepted EOS": "An EOS may be any token of an accepted run: look for it "
    "in the whole run, and drop what follows.",
    "the text ends with an EOS that the target puts in place of a draft": "The token that is drawn "
    "after the accepted ones can be an EOS too.",
    "an EOS of the draft that the target refuses ends nothing": "Only tokens of the text end it; "
    "look for an EOS after verification, not in the draft.",
    "no more tokens than asked for, all drafts accepted": "The last run reaches beyond "
    "max_new_tokens: cut it.",
    "an EOS ends the text though the run would reach beyond the limit": "Look for an EOS in the "
    "cut run too: whichever comes first ends the text.",
    "an EOS of id 0 ends the text": "0 is an id like any other: test eos is not None.",
    "an EOS in the prompt ends nothing": "Chats have an end token after each turn; only new tokens "
    "count.",
}
MOST_SHOWN = 6


def check_stopping(candidate: Candidate, rule: str, level: Level) -> Outcome:
    """EOS and the limit at each place of a run."""
    del rule
    checks, failures = 0, []
    for name, scripts in stopping(level).items():
        for script in scripts:
            checks += 1
            call = script.call()
            shown = snippet(candidate, script.lines(), call)
            try:
                got = run(candidate, call)
            except Exception as error:
                failures.append(explain(candidate, error, name, shown))
                break
            if got != script.text:
                why = WHY.get(name, "")
                failures.append(Failure(name, as_list(script.text), as_list(got), shown, why))
                break
    return Outcome(checks, failures[:MOST_SHOWN])


def check_greedy(candidate: Candidate, rule: str, level: Level) -> Outcome:
    """A target that is certain has one text, whatever the drafter says."""
    del rule
    checks, failures = 0, []
    for chain in chains(level):
        for seed in range(3):
            checks += 1
            call = chain.call(seed)
            what = f"a target that is certain, a drafter that {chain.drafter}"
            shown = snippet(candidate, chain.lines(), call)
            try:
                got = run(candidate, call)
            except Exception as error:
                failures.append(explain(candidate, error, what, shown))
                break
            if got != chain.text():
                failures.append(
                    Failure(
                        f"{what}: another text than that of plain decoding",
                        as_list(chain.text()),
                        as_list(got),
                        shown,
                        "Row i of the target follows the first i draft tokens; refused tokens and "
                        "rows after them are to be forgotten.",
                    )
                )
                break
    return Outcome(checks, failures[:MOST_SHOWN])
