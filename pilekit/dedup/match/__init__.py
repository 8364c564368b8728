"""From sketches to pairs: exact copies first, then documents that share the key of a band."""
