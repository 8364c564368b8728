"""How anything is kept: written whole or not at all, locked, with a header, in a folder that a killed job resumes."""
