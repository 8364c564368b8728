"""The command line. main.py knows the commands' names and turns errors into exit codes. Each command is a file of its
name, imported only when the command runs; options.py holds the arguments and options that commands share. A command
opens the corpus, calls one function of the library, and shows the result (display/) as a table or as JSON."""
