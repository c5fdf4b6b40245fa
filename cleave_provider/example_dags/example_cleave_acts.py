"""Prepare a topic for a busy day: set its maximum number of segments, split a segment, and merge the parts
again after the day.

A person fills in the form. In a DAG of your own, an earlier task would rather supply the topic and the
segment.
"""

from __future__ import annotations

from airflow.sdk import Param, dag

from cleave_provider.operators.cleave import (
    MergeSegmentsOperator,
    SetAutoScalePolicyOperator,
    SplitSegmentOperator,
)

CHILDREN = "ti.xcom_pull(task_ids='split')['children']"


@dag(
    schedule=None,
    params={"topic": Param(type="string"), "segment_id": Param(0, type="integer")},
    doc_md=__doc__,
    tags=["cleave", "example"],
)
def example_cleave_acts() -> None:
    ceiling = SetAutoScalePolicyOperator(
        task_id="ceiling", level="{{ params.topic }}", parameters={"max_segments": 16}
    )
    split = SplitSegmentOperator(
        task_id="split", topic="{{ params.topic }}", segment_id="{{ params.segment_id }}", reason="a busy day"
    )
    merge = MergeSegmentsOperator(
        task_id="merge",
        topic="{{ params.topic }}",
        first_id="{{ " + CHILDREN + "[0] }}",
        second_id="{{ " + CHILDREN + "[1] }}",
        reason="the day is over",
    )
    ceiling >> split >> merge


example_cleave_acts()
