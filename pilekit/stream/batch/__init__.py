"""From packed rows to batches: the columns, the attention mask, masked-language-model targets."""
