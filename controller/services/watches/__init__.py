"""The watches of clients: layouts of topics, and topics of namespaces. `feeds` waits and reads; each feed knows who watches what."""
