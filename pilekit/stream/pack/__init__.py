"""A lane's tokenized documents, packed into rows of `seq_len` tokens."""
