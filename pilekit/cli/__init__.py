"""The command line: one file for each command, which is imported only when the command runs.

main.py knows the commands' names and turns errors into exit codes; options.py holds the arguments and options that
commands share. A command opens the corpus, calls one function of the library, and shows the result (display/) as a
table or as JSON. Commands that show documents are in look/, those of models in models/, of token files in tokens/.
"""
