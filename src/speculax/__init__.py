"""Speculative decoding for JAX: verify draft tokens at memory speed, generate with any model."""

from speculax import theory as theory
from speculax.coupling import coupled_draw as coupled_draw
from speculax.draft_length import StepCosts as StepCosts
from speculax.drafters.early_exit import EarlyExit as EarlyExit
from speculax.drafters.first_match import FirstMatch as FirstMatch
from speculax.drafters.model import DraftModel as DraftModel
from speculax.drafters.ngram import NGram as NGram
from speculax.drafters.recurrent import RecurrentHead as RecurrentHead
from speculax.drafters.suffix import Suffix as Suffix
from speculax.drafting import Drafter as Drafter, Round as Round, Target as Target
from speculax.generation import Stream as Stream, generate as generate, stream as stream
from speculax.laws import Law as Law
from speculax.log_probs import LogProbs as LogProbs, log_probs as log_probs
from speculax.make_law import law_from_logits as law_from_logits, law_from_probs as law_from_probs
from speculax.models.errors import LoadError as LoadError
from speculax.models.load import load as load
from speculax.models.model import Model as Model
from speculax.request import Settings as Settings
from speculax.row import (
    Generation as Generation,
    NewTokens as NewTokens,
    Record as Record,
    TokenLogProbs as TokenLogProbs,
)
from speculax.sampling import sample as sample
from speculax.stats import Stats as Stats
from speculax.token_mask import TokenMask as TokenMask
from speculax.tuning import (
    Tuning as Tuning,
    load_costs as load_costs,
    save_costs as save_costs,
    tune as tune,
)
from speculax.types import (
    Draft as Draft,
    LanguageModel as LanguageModel,
    Verdict as Verdict,
)
from speculax.verify.block import verify_block as verify_block
from speculax.verify.check import check_inputs as check_inputs
from speculax.verify.coupled import verify_coupled as verify_coupled
from speculax.verify.greedy import verify_greedy as verify_greedy
from speculax.verify.lossy import (
    verify_lossy_synthetic as verify_lossy_synthetic,
    verify_lossy_thresholds as verify_lossy_thresholds,
    verify_lossy_top_k as verify_lossy_top_k,
    verify_lossy_typical as verify_lossy_typical,
)
from speculax.verify.ragged import verify_ragged as verify_ragged
from speculax.verify.sampled import verify_sampled as verify_sampled
from speculax.verify.token import verify_token as verify_token
