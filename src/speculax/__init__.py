"""Speculative decoding for JAX: verify draft tokens at memory speed, generate with any model."""

from speculax.verify.greedy import verify_greedy as verify_greedy
from speculax.verify.inputs import check_inputs as check_inputs
from speculax.verify.token import verify_token as verify_token
