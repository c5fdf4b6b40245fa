"""A question to a person that only the run knows: subject, text, what holds without an answer and until when come from a task before.

Airflow shows it under *Required Actions*. What is done with the answer is the next task's business.
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
"""Airflow 3.1 begins with a provider whose questions have the other name for it."""
WAITS = "response_timeout" if HAS_RESPONSE_TIMEOUT else "execution_timeout"
SHORTEST_WAIT = timedelta(seconds=1)
AFTER_ITS_TIME = timedelta(seconds=2)
"""Asked so much longer than an answer counts, so that the default holds by then, by the clock of the database."""


class AskOperator(RetriedOperator, HITLOperator):
    """Approve or reject, with a reason. `question` has `subject`, `body`, `default` (`approve` or `reject`) and
    `expires_at` (an instant, ISO 8601).
    """

    APPROVE, REJECT = "Approve", "Reject"
    template_fields: Collection[str] = ("question",)

    def __init__(self, *, question: Mapping[str, Any], **kwargs: Any) -> None:
        reason = Param(
            None, type=["null", "string"], title="Reason", description="Why, for whoever looks later."
        )
        super().__init__(
            subject="?", options=[self.APPROVE, self.REJECT], params={"reason": reason}, **kwargs
        )
        self.question = question

    def execute(self, context: Any) -> Any:
        """See the class."""
        self.subject, self.body = self.question["subject"], self.question["body"]
        self.defaults = [self.APPROVE if self.question["default"] == "approve" else self.REJECT]
        left = datetime.fromisoformat(self.question["expires_at"]) - datetime.now(UTC)
        setattr(self, WAITS, max(left, SHORTEST_WAIT) + AFTER_ITS_TIME)
        return super().execute(context)


def given_by(answer: Mapping[str, Any]) -> dict[str, Any]:
    """What somebody answered to a task that asked: `approve`, `actor` and `reason`; `actor` None where nobody did in time."""
    user, fields = answer.get("responded_by_user"), answer.get("params_input") or {}
    return {
        "approve": AskOperator.APPROVE in answer["chosen_options"],
        "actor": None if not user or answer.get("timedout") else str(user.get("name") or user["id"]),
        "reason": str(fields.get("reason") or ""),
    }
