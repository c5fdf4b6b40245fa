"""Contains the data plane `pulsar`: segments are ordinary persistent topics of one cluster of any Pulsar from
3.0 on.

The controller uses `plane.PulsarDataPlane` (admin REST); applications produce and consume through
`log_client.PulsarLogClient` (binary protocol). This package imports neither, so that a machine without the
broker's client library can use the controller's side.
"""
