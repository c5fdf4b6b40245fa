"""The namespace that the demo makes on a real broker is one in which segments live safely."""

from __future__ import annotations

from contextlib import closing

from controller.dataplane.pulsar.cluster_access import PulsarAccess
from controller.dataplane.pulsar.requirements import Namespaces
from controller.demo.planes import NAMESPACE, make_namespace
from tests.support.brokers import SharedBroker


def test_the_demos_namespace_is_set_as_segments_need_it_and_may_be_made_again(
    pulsar_broker: SharedBroker,
) -> None:
    access = PulsarAccess(admin_url=pulsar_broker.admin_url, service_url=pulsar_broker.service_url)

    for _ in range(2):
        make_namespace(access)

        with closing(Namespaces(access, call_timeout_seconds=30.0)) as namespaces:
            assert namespaces.check(NAMESPACE) == ()
