"""Published rules by which text for training is kept or dropped: one file for each set.

    from pilekit import GopherQuality, GopherRepetition, Pipeline, read

    pipeline = Pipeline([GopherQuality(words=(20, 100_000)), GopherRepetition()])
    for batch in pipeline(read("00.jsonl.zst")):
        ...

rule_set.py says what a set is. scanned_texts.py finds words and lines once for all sets, and repeats.py what a text
repeats of itself.
"""
