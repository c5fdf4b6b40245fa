"""What a Pulsar cluster's brokers report: counters of logs from their metrics pages, consumers from topic statistics.

Given to the data planes `pulsar` and `pulsar_scalable`, whose `sample` and `consumers` are these.
"""

from controller.dataplane.load_settings import LoadSettings
from controller.dataplane.pulsar_load.http import AuthorizedSession, HttpSession
from controller.dataplane.pulsar_load.load import PulsarLoad

__all__ = ["AuthorizedSession", "HttpSession", "LoadSettings", "PulsarLoad"]
