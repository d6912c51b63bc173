"""The drafter that the options of a command name."""

import speculax as sx
from speculax.cli.errors import mendable


def choose_drafter(draft_model: str | None, draft_length: int | None, command: str) -> sx.Drafter:
    """A draft model, or n-grams if none is named; lengths not given are 4 and 15."""
    with mendable(ValueError, f"see speculax {command} --help"):
        if draft_model is None:
            return sx.NGram(15 if draft_length is None else draft_length)
        return sx.DraftModel(sx.load(draft_model), 4 if draft_length is None else draft_length)
