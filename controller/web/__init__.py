"""What a worker serves over HTTP: layouts and watches to everybody, sessions and assignments to the consumers it leads.

`app` puts the routes together, one file a subject; `access` says who may ask what, `streams` are server-sent events, `server` runs
it all beside the worker. The protocol as a client sees it: docs/reference/client-protocol.md.
"""
