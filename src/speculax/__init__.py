"""Speculative decoding for JAX: verify draft tokens at memory speed, generate with any model."""

from speculax.drafters.ngram import NGram as NGram
from speculax.generation import (
    Generation as Generation,
    NewTokens as NewTokens,
    Stream as Stream,
    generate as generate,
    stream as stream,
)
from speculax.models.errors import LoadError as LoadError
from speculax.models.load import load as load
from speculax.models.model import Model as Model
from speculax.stats import Stats as Stats
from speculax.types import (
    Draft as Draft,
    Drafter as Drafter,
    LanguageModel as LanguageModel,
    Verdict as Verdict,
)
from speculax.verify.check import check_inputs as check_inputs
from speculax.verify.greedy import verify_greedy as verify_greedy
from speculax.verify.token import verify_token as verify_token
