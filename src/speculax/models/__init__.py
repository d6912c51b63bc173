"""Language models: the decoder, its weights and its tokenizer."""
