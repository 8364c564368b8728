"""`pilekit explore`: sources.py answers questions about a corpus, and server.py lets only the page ask them.

page/ is the page: HTML, CSS and plain JavaScript, which shows all text by `textContent`.
"""
