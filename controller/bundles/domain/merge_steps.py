"""What an operator does to merge bundles: Pulsar has no call for it, so the namespace is created anew.

Under the *same name*: a topic's hash is that of its complete name, so in a namespace called otherwise every
topic lies elsewhere and these boundaries mean nothing. Creation takes any boundaries, and Pulsar forgets the old
ones when a namespace is deleted (pull request 352; done by these steps on 4.2.4). Messages nobody has read go with it.
"""

from __future__ import annotations

import json

from controller.bundles.domain.merge_answers import MergeAct, MergeStep
from controller.bundles.domain.namespace_bundle import edge_text
from controller.bundles.domain.namespace_bundles import NamespaceBundles


def operator_steps(before: NamespaceBundles, after: NamespaceBundles) -> tuple[MergeStep, ...]:
    """The steps in order, each with the call to make where there is one."""
    name = before.namespace
    path = f"/admin/v2/namespaces/{name}"
    edges = {"boundaries": [edge_text(edge) for edge in after.boundaries], "numBundles": after.count}
    body = json.dumps({"bundles": edges})
    return (
        MergeStep(
            MergeAct.RECORD,
            f"Write down the policies of {name} (GET {path}), its topics with their partitions, their subscriptions "
            f"and schemas, and the boundaries of its {before.count} bundles.",
        ),
        MergeStep(MergeAct.STOP_CLIENTS, f"Stop the producers of {name}."),
        MergeStep(
            MergeAct.DRAIN,
            "Wait until every subscription has read everything; copy what must be kept beyond that: "
            "the next step deletes it.",
        ),
        MergeStep(
            MergeAct.DELETE,
            f"Stop the consumers, delete the topics, then the empty namespace (DELETE {path}).",
        ),
        MergeStep(
            MergeAct.CREATE,
            f"Create it under the same name with {after.count} bundles: PUT {path} with the body {body}",
        ),
        MergeStep(
            MergeAct.RESTORE, "Set the policies again; create topics, schemas and subscriptions again."
        ),
        MergeStep(MergeAct.START_CLIENTS, "Start the consumers, then the producers."),
        MergeStep(
            MergeAct.VERIFY, f"GET {path}/bundles must answer the boundaries of the step {MergeAct.CREATE}."
        ),
    )
