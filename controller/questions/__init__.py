"""Questions: lists and rows for people, each from a view of schema `inspect`.

Each subject has a file that declares its questions. REST lists, commands with `--json`, and tables of the pages follow from these
declarations (docs/adr/0017-one-declaration-per-action.md).
"""
