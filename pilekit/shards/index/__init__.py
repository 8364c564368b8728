"""The index of a shard: a row per document and the places where reading can begin.

document_rows.py is the one way from a shard's blocks to rows of its documents, by the compiled json_line_kernel.py
where a process reads much. scan.py reads a shard once and finds the first line of each frame. build.py writes the
result as a Parquet file whose layout is in format.py and metadata.py, and finds existing indexes.
"""
