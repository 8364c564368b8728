"""Commands that print documents: `head` the first, `sample` random ones, `grep` those with a pattern, `show` one by its
number, `duplicates` removed ones beside the kept ones."""
