"""The commands, one module each; `main(argv=None)` parses and runs."""
