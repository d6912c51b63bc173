"""The proof: checks of verifiers, samplers and loops that anyone wrote, and of this library's own.

`check` is what `speculax check` runs.
"""

from speculax.conformance.candidate import MisuseError as MisuseError
from speculax.conformance.check import check as check
from speculax.conformance.report import (
    Diagnosis as Diagnosis,
    Failure as Failure,
    Outcome as Outcome,
    Report as Report,
    Stage as Stage,
)
