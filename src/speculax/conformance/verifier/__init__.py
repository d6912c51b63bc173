"""What a verifier of draft tokens is held to: examples, form, instances, edges, law and speed."""
