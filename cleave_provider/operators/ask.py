"""A question to a person whose subject, text, default and time limit come from an earlier task.

Airflow shows the question under *Required Actions*. A later task processes the answer.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.providers.standard.operators.hitl import HITLOperator
from airflow.sdk import Param

from cleave_provider.operators.retried import RetriedOperator

HAS_RESPONSE_TIMEOUT = "response_timeout" in inspect.signature(HITLOperator.__init__).parameters
"""False for the first provider version of Airflow 3.1, whose questions have another name for the time limit.
"""
TIME_LIMIT_ATTRIBUTE = "response_timeout" if HAS_RESPONSE_TIMEOUT else "execution_timeout"
SHORTEST_WAIT = timedelta(seconds=1)
GRACE_PERIOD = timedelta(seconds=2)
"""Time that a question stays open after its approval expires, so that the default applies by then, by the
clock of the database.
"""


class AskOperator(RetriedOperator, HITLOperator):
    """Asks a person to approve or reject, with a reason. `question` has `subject`, `body`, `default`
    (`approve` or `reject`) and `expires_at` (an instant, ISO 8601).
    """

    APPROVE, REJECT = "Approve", "Reject"
    template_fields: Collection[str] = ("question",)

    def __init__(self, *, question: Mapping[str, Any], **kwargs: Any) -> None:
        reason = Param(
            None,
            type=["null", "string"],
            title="Reason",
            description="Reason for the answer, for later readers.",
        )
        super().__init__(
            subject="?", options=[self.APPROVE, self.REJECT], params={"reason": reason}, **kwargs
        )
        self.question = question

    def execute(self, context: Any) -> Any:
        """Show the question, and wait for the answer. The default applies GRACE_PERIOD after `expires_at`, at the earliest SHORTEST_WAIT
        from now.
        """
        self.subject, self.body = self.question["subject"], self.question["body"]
        self.defaults = [self.APPROVE if self.question["default"] == "approve" else self.REJECT]
        remaining = datetime.fromisoformat(self.question["expires_at"]) - datetime.now(UTC)
        setattr(self, TIME_LIMIT_ATTRIBUTE, max(remaining, SHORTEST_WAIT) + GRACE_PERIOD)
        return super().execute(context)


def given_by(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Return the answer to a question as `approve`, `actor` and `reason`. `answer` is the result of an `AskOperator`.
    `actor` is None if no person answered in time; `approve` is then the default answer.
    """
    user, fields = answer.get("responded_by_user"), answer.get("params_input") or {}
    return {
        "approve": AskOperator.APPROVE in answer["chosen_options"],
        "actor": None if not user or answer.get("timedout") else str(user.get("name") or user["id"]),
        "reason": str(fields.get("reason") or ""),
    }
