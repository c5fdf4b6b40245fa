"""A change applies to the code that it names, wherever that stands and however it is formatted."""

from __future__ import annotations

import ast

import pytest

from tests.mutants.change import Change, ImpossibleChange, Kind

SOURCE = '''
LIMIT = 10
_HELD = "o.claimed_by = :runner"
_RENEW = f"""
    UPDATE lease l SET term = :term
     WHERE {_HELD}
       AND l.term  =  :term
"""


class Store:
    def renew(self, lease, late):
        """Renew."""
        # a comment
        if (
            late
            and not lease.is_ours
        ):
            raise ValueError(lease)
        self.write(lease, lock=True)
        return [one for one in lease.parts if one < LIMIT if one.held]

    def take(self, lease):
        return lease.begins <= LIMIT
'''
SQL = """CREATE TABLE cleave.lease (
    term  bigint   CHECK (term > 0)
);
CREATE FUNCTION cleave.take() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF OLD.term > 0
       AND NEW.term < OLD.term THEN
"""


def changed_renew(kind: str, select: str, by: str) -> str:
    """Return the source of `Store.renew` with the change."""
    tree = ast.parse(Change("store.py:Store.renew", Kind(kind), select=select, by=by).apply(SOURCE))
    [store] = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    return ast.unparse(store.body[0])


@pytest.mark.parametrize(
    ("kind", "select", "by", "becomes"),
    [
        ("never", "if late and (not lease.is_ours):", "", "if False:"),
        ("always", "if ...:", "", "if True:"),
        ("negate", "late", "", "if not late and (not lease.is_ours):"),
        ("remove", "not lease.is_ours", "", "if late:"),
        ("remove", "self.write(...)", "", "raise ValueError(lease)\n    pass\n"),
        ("remove", "lock=True", "", "self.write(lease)"),
        ("never", "lock=True", "", "self.write(lease, lock=False)"),
        ("replace", "lock=True", "late", "self.write(lease, lock=late)"),
        ("remove", "one.held", "", "if one < LIMIT]"),
        ("boundary", "one < LIMIT", "", "if one <= LIMIT if"),
        ("replace", "lease.parts", "lease.parts[:1]", "for one in lease.parts[:1] if"),
        ("replace", "raise ...", "first(); second()", "        first()\n        second()\n"),
    ],
)
def test_selected_code_is_changed(kind: str, select: str, by: str, becomes: str) -> None:
    assert becomes in changed_renew(kind, select, by)


def test_other_functions_stay_as_they_are() -> None:
    after = Change("store.py:Store.take", Kind.BOUNDARY, select="lease.begins <= LIMIT").apply(SOURCE)

    expected = SOURCE.replace("lease.begins <= LIMIT", "lease.begins < LIMIT")
    assert after == ast.unparse(ast.parse(expected))


@pytest.mark.parametrize(
    ("sql", "by", "condition"),
    [
        ("AND l.term = :term", "", "WHERE o.claimed_by = :runner"),
        ("WHERE {_HELD} AND", "WHERE", "WHERE l.term = :term"),
        (
            "l.term",
            "{_HELD} OR l.term",
            "WHERE o.claimed_by = :runner AND o.claimed_by = :runner OR l.term = :term",
        ),
    ],
)
def test_sql_in_a_string_is_changed_values_between_braces_included(sql: str, by: str, condition: str) -> None:
    names: dict[str, str] = {}
    exec(Change("store.py:_RENEW", Kind.REPLACE, sql=sql, by=by).apply(SOURCE), names)

    assert " ".join(names["_RENEW"].split()) == f"UPDATE lease l SET term = :term {condition}"


def test_sql_of_an_object_in_a_file_is_changed() -> None:
    after = Change("x.sql:take", Kind.REPLACE, sql="OLD.term > 0 AND", by="true AND").apply(SQL)

    assert after == SQL.replace("OLD.term > 0\n       AND", "true AND")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (Change("x.py:Store.renew", Kind.REMOVE, select="late()"), r"'late\(\)' is there 0 times"),
        (Change("x.py:Store.renew", Kind.REPLACE, select="lease", by="x"), "'lease' is there 4 times"),
        (Change("x.py:Store.renew", Kind.REMOVE, select="late", nth=2), "'late' is there 1 times"),
        (Change("x.py:Store.renew", Kind.REPLACE, select="late", by="late"), "nothing is changed"),
        (Change("x.py:Store.renew", Kind.BOUNDARY, select="late"), "late does not take boundary"),
        (Change("x.py:Store.renew", Kind.REMOVE, select="lease.is_ours"), "the changed code is no Python"),
        (Change("x.py:Store.give", Kind.REMOVE, select="late"), "there is no Store.give"),
        (Change("x.py:_RENEW", Kind.REMOVE, sql="l.turn"), "'l.turn' is there 0 times"),
        (Change("x.sql:lease", Kind.REMOVE, sql="OLD.term > 0"), "is there 0 times"),
        (Change("x.sql", Kind.REMOVE, sql="OLD.term"), "is there 2 times"),
        (Change("x.sql:give", Kind.REMOVE, sql="term"), "there is no give"),
    ],
)
def test_a_change_that_fits_no_place_or_several_is_refused(change: Change, says: str) -> None:
    with pytest.raises(ImpossibleChange, match=says):
        change.apply({"x.py": SOURCE, "x.sql": SQL}[change.file])
