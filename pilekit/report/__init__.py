"""`pilekit report`: one HTML page that shows the given artefacts.

    paths -> collect.py: artefacts, each with its command -> a section module: data -> templates/KIND.html: the page

Section modules (corpus, dedup, cuts, training, bits) turn an artefact of their kind into data and figures for its
template, which holds the words and tables. Figures are matplotlib's, drawn as inline SVG (figures.py). Each part of the
page names its source: the command and the artefact that its numbers come from.

A corpus is hostile text. Every string passes through `visible` and jinja2's autoescape, so nothing becomes markup, and
the page's policy (CSP) allows no network, and no script but its own, which it names by its hash.
"""
