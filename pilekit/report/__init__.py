"""`pilekit report`: one HTML page that shows the given artefacts.

    paths -> collect.py: artefacts, each with its source -> a section module: parts -> page.py and templates/: the page

Section modules (corpus, dedup, cuts, training, bits) turn artefacts of their kind into parts (parts.py): tables,
figures, pairs of texts. They know nothing of HTML. Figures are matplotlib's, drawn as inline SVG (figures.py). Each
part names its source: the command and the artefact that its numbers come from.

A corpus is hostile text. Every string passes through `visible` and jinja2's autoescape, so nothing becomes markup, and
the page's policy (CSP) allows no network, and no script but its own, which it names by its hash.
"""
