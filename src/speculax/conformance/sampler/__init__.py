"""What a sampler is held to: form, law, settings, greedy rows, real vocabularies and edges."""
