"""Actions: everything that people and programs change, each declared once.

A subject is a file that lists its actions. REST, commands, DAGs, forms, previews and operators are made from the declarations
(docs/adr/0017-one-declaration-per-action.md).
"""
