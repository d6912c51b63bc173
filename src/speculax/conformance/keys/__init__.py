"""What a verifier that takes a key in place of uniforms is held to: form, edges and law."""
