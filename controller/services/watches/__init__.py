"""The watches of clients: layouts of topics, and topics of namespaces. `feeds` waits for changes and reads
them; each feed knows its watchers.
"""
