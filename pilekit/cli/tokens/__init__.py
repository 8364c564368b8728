"""Commands about token ids: `train-tokenizer`, `tokenize` writes token files, `merge` joins them."""
