"""`cleave segments`, and what `lineage`, `layout` and `operations` say afterwards."""

from __future__ import annotations

from tests.support.command_line import CommandLine


def test_split_merge_and_rebucket_each_make_the_next_layout(cleave: CommandLine, orders: str) -> None:
    split = cleave.json("segments", "split", orders, "0", "--cut-points", "0x1000", "--reason", "hot keys")
    merged = cleave.json("segments", "merge", orders, "2", "3")
    rebucketed = cleave.json("segments", "rebucket", orders, "1", "8")

    assert [(one["segment_id"], one["hash_range"]) for one in split["creates"]] == [
        (2, "0000-0fff"),
        (3, "1000-7fff"),
    ]
    assert (split["origin"], split["actor"], split["reason"]) == ("manual", "ada", "hot keys")
    assert merged["children"] == [4]
    assert rebucketed["children"] == [5]
    assert [one["epoch"] for one in (split, merged, rebucketed)] == [1, 2, 3]
    active = [row for row in cleave.json("layout", orders)["segments"] if row["state"] == "ACTIVE"]
    assert [(row["segment_id"], row["buckets"]) for row in active] == [(4, 2), (5, 8)]


def test_a_split_into_equal_parts(cleave: CommandLine, orders: str) -> None:
    split = cleave.json("segments", "split", orders, "1", "--parts", "4")

    assert len(split["children"]) == 4


def test_dry_runs_say_what_would_happen(cleave: CommandLine, orders: str) -> None:
    split = cleave.rehearsed("segments", "split", orders, "1")
    merge = cleave.rehearsed("segments", "merge", orders, "0", "1")
    rebucket = cleave.rehearsed("segments", "rebucket", orders, "0", "4")

    title = f"topic://{orders} at epoch 0: "
    assert split.startswith(f"{title}split would seal 1 and create 2 [8000-bfff], 3 [c000-ffff]\n")
    assert merge.startswith(f"{title}merge would seal 0, 1 and create ")
    assert rebucket.startswith(f"{title}rebucket would seal 0 and create ")
    as_data = cleave.json("segments", "split", orders, "1", "--dry-run")
    assert [child["hash_range"] for child in as_data["creates"]] == ["8000-bfff", "c000-ffff"]


def test_a_dry_run_refuses_a_busy_segment(cleave: CommandLine, orders: str) -> None:
    cleave.ok("segments", "split", orders, "0", "--no-wait")

    assert "operation" in cleave.refused("segments", "split", orders, "0", "--dry-run")
    assert "operation" in cleave.refused("segments", "split", orders, "0")


def test_what_outlasts_the_patience_is_to_be_tried_again(cleave: CommandLine, orders: str) -> None:
    """A worker seems to be up, so it is left to it; nobody takes it."""
    cleave.execute(
        "INSERT INTO cleave.lease (name, holder, term, expires_at) VALUES ('worker/w', 'w', 1, now() + interval '1 hour')"
    )

    answer = cleave("segments", "split", orders, "0", "--timeout-seconds", "0.2")

    assert answer.code == 75
    assert "intended" in answer.out
    assert answer.err.startswith("cleave: operation ")
    assert cleave.json("operations", "--live")[0]["state"] == "intended"


def test_lineage_is_a_tree_and_a_document(cleave: CommandLine, orders: str) -> None:
    cleave.ok("segments", "split", orders, "0")
    cleave.ok("segments", "merge", orders, "3", "1")

    tree = cleave.ok("lineage", orders)
    below = cleave.json("lineage", orders, "2")

    assert tree.splitlines() == [
        f"topic://{orders} at epoch 2",
        "├── 0 [0000-7fff] epoch 0, sealed at 1",
        "│   ├── 2 [0000-3fff] epoch 1, active",
        "│   └── 3 [4000-7fff] epoch 1, sealed at 2",
        "│       └── 4 [4000-ffff] epoch 2, active, parents [3, 1]",
        "└── 1 [8000-ffff] epoch 0, sealed at 2",
        "    └── 4 [4000-ffff] epoch 2, active, parents [3, 1] (drawn above)",
    ]
    assert sorted(row["segment_id"] for row in below["segments"]) == [0, 2]


def test_the_layout_is_shown_as_it_was(cleave: CommandLine, orders: str) -> None:
    cleave.ok("segments", "split", orders, "0")

    before = cleave.json("layout", orders, "--at", "0")
    metadata = cleave.json("layout", orders, "--metadata")

    assert [row["segment_id"] for row in before["segments"]] == [0, 1]
    assert before["epoch"] == 0
    assert cleave.json("layout", orders, "--at", "2999-01-01T00:00:00Z")["epoch"] == 1
    assert metadata["epoch"] == 1
    assert cleave.ok("layout", orders).startswith(f"topic://{orders} at epoch 1\n")


def test_operations_are_listed_newest_first(cleave: CommandLine, orders: str) -> None:
    cleave.ok("segments", "split", orders, "0")

    assert [row["kind"] for row in cleave.json("operations", "--topic", orders)] == ["split", "create"]
    assert cleave.json("operations", "--live") == []
    assert cleave.json("operations", "--stuck") == []
    assert "split" in cleave.ok("operations", "--limit", "1")
