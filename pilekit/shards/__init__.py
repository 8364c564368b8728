"""How a corpus is stored, and how work runs over its shards.

read/            from stored bytes to blocks of lines or rows, and to documents
write/           from documents to a shard in frames; `reframe` copies whole shards
index/           a row per document of a shard, and the places where reading can begin
random_access/   documents by number: only the frame that holds a document is decoded
verify/          reads every shard once and lists findings, each with shard, frame, line and byte

corpus_job.py runs a command over shards, with the options of work.py. folder_job.py runs the commands that write a
folder, and resumes them.
"""
