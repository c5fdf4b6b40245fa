"""Contains the data plane for Pulsar 5's own scalable topics: the broker keeps the layout; Cleave mirrors it,
decides, and requests reshapes.
"""

from controller.dataplane.pulsar_scalable.plane import PulsarScalableDataPlane

__all__ = ["PulsarScalableDataPlane"]
