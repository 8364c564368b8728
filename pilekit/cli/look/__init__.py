"""Commands that print documents of a corpus: `head` the first, `sample` random ones, `grep` those with a pattern."""
