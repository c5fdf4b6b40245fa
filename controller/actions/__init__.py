"""Actions: all changes that people and programs can make, each declared once.

A subject is a module that lists its actions. REST calls, commands, DAGs, forms, dry runs and operators are built
from the declarations (docs/adr/0017-one-declaration-per-action.md).

An action that becomes an operation writes the operation's intent in one transaction, then waits for its end as the
options of the context allow. A dry run rolls the intent back, does not wait, and returns the operation without an
id.
"""
