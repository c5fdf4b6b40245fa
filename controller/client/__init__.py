"""What an application uses: a producer that routes by the layout, and a stream consumer that reads in key order.

Stands on the domain and on a `LogClient` that is passed in; where layouts come from is behind `LayoutSource`.
"""
