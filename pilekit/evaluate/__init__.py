"""Bits per byte: how well a model predicts text, per subset.

bits_per_byte.py     documents in, figures out
prepared.py          all that is known, and all that is refused, before weights are read
model_folder.py      a model folder, read whole or refused
causal_lm.py         a model as what scoring and training need, and the proof that it is one
masked_lm.py         a masked model, likewise
device.py            where a model computes, and in what precision
selection.py         which documents are scored, and by which rank
group0.py            the tenth of test that the paper scored
windows.py           which tokens are predicted from which: the published rule
scoring.py           negative log-likelihoods of windows, batched by length
pseudo_scoring.py    the same of a masked model, one token masked at a time
fitting.py           forward passes over as many of them as memory holds
job.py               ranks that score apart and meet at the end
credit.py            how far it has come
records.py           what was scored, document by document
result_folder.py     records on disk, and going on from them
key_file.py          the protocol beside them, whose shape is sure
protocol.py          everything that a figure depends on
tabulate.py          figures from records, and from nothing else
intervals.py         how sure a figure is
paper.py             the paper's variant
published.py         published figures, where they may stand beside
training_copies.py   scored documents that training shards hold too
result.py            the figures, result.json
compare.py           models against each other, document by document
table.py             the figures as a table
comparison_table.py  comparisons as a table
plot.py              both as a picture
"""
