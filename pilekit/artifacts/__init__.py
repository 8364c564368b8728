"""How anything is kept: written whole or not at all, locked, with a header, in a folder that a killed job resumes.

    write_atomically(path)       a file appears under its name when it is complete; `follow_links=True` for a path that
                                 the user typed, else a link in its place is replaced
    open_own(path), read_own     a file that is written in place or locked: no link is followed, no pipe waited for;
                                 `alone=True` refuses a hard link
    locked(path)                 one process at a time; the lock ends with its holder
    write_header, read_header    pilekit.json: who made a folder, of which kind, from what, with what
    output_folder(out, ...)      the folder of a job, with a note for each finished shard
    cache_folder()               where things go that cannot lie beside the data

Data goes job_folder -> header, file_lock -> atomic_write -> own_file. Everything that pilekit keeps goes through them.
"""
