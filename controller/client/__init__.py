"""Contains the client library that applications use, synchronous and for asyncio (`asynchronous`).

A producer routes messages by the layout. A stream consumer reads each key in order for a subscription. A
checkpoint consumer reads from positions that the application stores. Queue consumers share messages in no
order.
The package needs the domain, a `LogClient` for the logs and a `LayoutSource` for the layouts.
"""
