"""What a verifier of the flat layout is held to: drafts of different lengths, end to end."""
