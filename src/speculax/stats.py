"""What a person wants to know of a generation: counts, rates and times."""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Stats:
    """Counts of what was kept after cutting, and times in seconds, of one request.

    Attributes:
        steps: Target calls, one draft-and-verify round each.
        drafted: Draft tokens proposed, those after the first that failed included.
        accepted: Draft tokens kept.
        emitted: Tokens made, accepted and drawn.
        drafted_by_position: `drafted`, by place in the draft.
        accepted_by_position: `accepted`, by place in the draft.
        tested_by_position: Draft tokens before which all others had held, by place in the draft.
        prefill_seconds: Time to read the prompt.
        decode_seconds: Time to make the tokens after that, compilation apart.
        compile_seconds: Time spent compiling, in both.
        host_seconds: The part of `decode_seconds` not spent waiting for the device.
        time_to_first_token: Seconds from the start until the host saw the first token,
            compilation apart.

    In a batch, times run until the request's own last token; those of reading prompts are of all
    that were read at once, and waiting for a row, or while others' prompts are read, is in none.
    """

    steps: int
    drafted: int
    accepted: int
    emitted: int
    drafted_by_position: tuple[int, ...]
    accepted_by_position: tuple[int, ...]
    tested_by_position: tuple[int, ...]
    prefill_seconds: float
    decode_seconds: float
    compile_seconds: float
    host_seconds: float
    time_to_first_token: float

    @property
    def acceptance_rate(self) -> float:
        """Accepted over drafted tokens; NaN if none was drafted."""
        return _ratio(self.accepted, self.drafted)

    @property
    def acceptance_by_position(self) -> tuple[float, ...]:
        """Accepted over drafted tokens at each place in the draft; NaN where none was drafted."""
        pairs = zip(self.accepted_by_position, self.drafted_by_position, strict=True)
        return tuple(_ratio(*pair) for pair in pairs)

    @property
    def conditional_acceptance(self) -> tuple[float, ...]:
        """Accepted over tested tokens at each place in the draft; NaN where none was tested.

        How often a draft token holds if those before it did: what `speculax.theory` asks for as
        acceptance rates.
        """
        pairs = zip(self.accepted_by_position, self.tested_by_position, strict=True)
        return tuple(_ratio(*pair) for pair in pairs)

    @property
    def block_efficiency(self) -> float:
        """Tokens emitted per target call, the drawn token included; NaN before the first."""
        return _ratio(self.emitted, self.steps)

    @property
    def tokens_per_second(self) -> float:
        """Tokens emitted per second of decoding, prefill and compilation apart."""
        return _ratio(self.emitted, self.decode_seconds)


def _ratio(numerator: float, denominator: float) -> float:
    return numerator / denominator if denominator else math.nan
