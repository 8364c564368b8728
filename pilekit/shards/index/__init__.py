"""The index of a shard: a row per document and the places where reading can begin.

scan.py reads a shard once and finds the first line of each frame. document_rows.py turns its lines into rows (by the
compiled json_line_kernel.py where a shard is long). build.py writes the result as a Parquet file whose layout is in
format.py and metadata.py, and finds existing indexes.
"""
