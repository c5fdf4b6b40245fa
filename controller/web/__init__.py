"""The HTTP API of a worker: layouts and watches for every client, sessions and assignments for the consumers that the worker leads.

`app` joins the routes, one file for each subject. `access` decides which token may call which route, `streams` sends server-sent events, and
`server` runs the app in a thread of the worker. The protocol as a client sees it: docs/reference/client-protocol.md.
"""
