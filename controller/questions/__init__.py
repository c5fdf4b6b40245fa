"""Questions: the lists and rows that people look at, each a view of schema `inspect`.

A subject is a file that lists its questions. REST lists, commands and their `--json`, and the tables of the pages are made from the
declarations (docs/adr/0017-one-declaration-per-action.md).
"""
