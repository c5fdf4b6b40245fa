"""What an application uses: a producer that routes by the layout, and a stream consumer that reads in key order.

It needs the domain, a `LogClient` for the logs and a `LayoutSource` for the layouts.
"""
