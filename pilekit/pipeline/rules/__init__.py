"""Published rules for keeping or dropping training text: one file for each source.

    from pilekit import GopherQuality, GopherRepetition, Pipeline, read

    pipeline = Pipeline([GopherQuality(words=(20, 100_000)), GopherRepetition()])
    for batch in pipeline(read("00.jsonl.zst")):
        ...

rule_set.py defines a set. scanned_texts.py finds words and lines once for all sets, and text_repeats.py finds
repeated lines, paragraphs and n-grams.
"""
