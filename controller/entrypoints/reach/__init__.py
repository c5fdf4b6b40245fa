"""How commands reach Cleave: its database, or a server over HTTP. One port, two ways through it, and which way is taken.

A command asks `chosen.control_plane()` and prints what it gets, so that its tables and documents are the same both ways. `verbs` says
which commands go both ways; the others need the database, and refuse where a server is named.
"""
