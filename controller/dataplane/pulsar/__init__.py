"""The data plane `pulsar`: segments are ordinary persistent topics of any Pulsar from 3.0 on, one cluster.

`plane.PulsarDataPlane` is what the controller calls (admin REST), `log_client.PulsarLogClient` what applications
produce and consume through (binary protocol). Nothing is imported here, so that a machine without the broker's
client can use the controller's side.
"""
