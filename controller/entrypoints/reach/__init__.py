"""How commands reach Cleave: its database, or a server over HTTP.

A command calls `chosen.perform` or `chosen.ask` and prints the answer, so that its tables and documents are the same both ways. `verbs`
says which commands go both ways; the others need the database, and refuse where a server is named.
"""
