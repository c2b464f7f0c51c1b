"""The command line: arguments, exit codes, progress."""
