"""How pilekit stores files: written whole or not at all, locked, with a header, in a folder that a killed job resumes.

    write_atomically(path)       a file appears under its name when it is complete; `follow_links=True` for a path that
                                 the user typed, else a link at `path` is replaced
    open_own(path), read_own     open a file that is written in place or locked: follows no link, waits for no pipe;
                                 `alone=True` refuses a hard link
    locked(path)                 one process at a time; the lock ends with its holder
    write_header, read_header    pilekit.json: the version, kind, parameters, inputs and results of a folder
    output_folder(out, ...)      the folder of a job, with a note for each finished shard
    SealedKind(name, ...)        a sealed artefact: read as it was written, or refused with the remedy
    checked(value, kind)         a value that a person gives, checked against a type
    cache_folder()               the folder for files that cannot be stored beside the data
    sort/                        sorts more rows than memory holds, in unnamed files

The layers are job_folder -> header, file_lock -> atomic_write -> own_file, folders. All artefacts of pilekit use them.
"""
