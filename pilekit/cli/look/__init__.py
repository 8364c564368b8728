"""Commands that show documents. `head` prints the first documents of a corpus, `sample` random documents, `grep`
documents with a pattern, `show` one document. `duplicates`, `explore` and `report` show corpora and results."""
