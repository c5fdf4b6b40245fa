"""Actions: all changes that people and programs can make, each declared once.

A subject is a module that lists its actions. REST calls, commands, DAGs, forms, previews and operators are
built from the declarations (docs/adr/0017-one-declaration-per-action.md).
"""
