"""Other common forms of the exercise, mapped onto the contract of a verifier."""
