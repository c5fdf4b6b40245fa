"""What an application uses: a producer that routes by the layout; consumers that read in key order for a subscription (stream) or at
positions of their own (checkpoint), or share messages in no order (queue); and all of them awaited (`asynchronous`).

It needs the domain, a `LogClient` for the logs and a `LayoutSource` for the layouts.
"""
