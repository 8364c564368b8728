"""Commands that show documents: `head` the first, `sample` random ones, `grep` those with a pattern, `show` one by its
number, `duplicates` removed ones beside the kept ones, `explore` all of them in a browser, `report` what was made."""
