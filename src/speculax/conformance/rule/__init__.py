"""Checks of a verifier with a rule of its own: whatever it keeps, the target's law comes out."""
