"""Rebuilds schema `inspect`: its views and functions are dropped and created again whenever they or the tables change.

Objects of cleave_owner in that schema belong to Cleave. All other objects that depend on them have other owners, and are dropped
only on request. Rights on the objects that others granted are kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, text

READERS = ("cleave_inspector", "cleave_controller")
"""The roles that may read the views and call the functions."""

_OURS = """
    SELECT 'pg_class'::regclass::oid AS classid, c.oid AS objid, c.relkind, format('%I.%I', n.nspname, c.relname) AS name,
           c.relacl AS acl, c.relowner AS owner
      FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
     WHERE n.nspname = 'inspect' AND c.relkind = 'v' AND pg_get_userbyid(c.relowner) = 'cleave_owner'
    UNION ALL
    SELECT 'pg_proc'::regclass::oid, p.oid, 'f', format('%I.%I(%s)', n.nspname, p.proname, oidvectortypes(p.proargtypes)),
           p.proacl, p.proowner
      FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
     WHERE n.nspname = 'inspect' AND pg_get_userbyid(p.proowner) = 'cleave_owner'
"""
# A view depends on others by its rule, so a rule stands for its view. The row type of a view is part of the view.
_DEPENDENTS = text(f"""
    WITH RECURSIVE ours AS ({_OURS}), reached (classid, objid, objsubid) AS (
        SELECT classid, objid, 0 FROM ours
        UNION
        SELECT CASE WHEN r.oid IS NULL THEN d.classid ELSE 'pg_class'::regclass::oid END, coalesce(r.ev_class, d.objid), d.objsubid
          FROM reached
          JOIN pg_depend d ON d.refclassid = reached.classid AND d.refobjid = reached.objid
           AND reached.objsubid IN (0, d.refobjsubid)
          LEFT JOIN pg_rewrite r ON d.classid = 'pg_rewrite'::regclass AND r.oid = d.objid
    )
    SELECT DISTINCT pg_describe_object(classid, objid, objsubid) FROM reached
     WHERE (classid, objid) NOT IN (SELECT classid, objid FROM ours)
       AND NOT (classid = 'pg_type'::regclass AND EXISTS (
           SELECT FROM pg_type y LEFT JOIN pg_type e ON e.oid = y.typelem JOIN pg_class c ON c.oid IN (y.typrelid, e.typrelid)
            WHERE y.oid = objid AND c.relkind IN ('v', 'm', 'r')))
     ORDER BY 1
""")  # noqa: S608 -- composed of constants
_GRANTS = text(f"""
    WITH ours AS ({_OURS}), granted AS (
        SELECT o.classid, o.name, o.owner, NULL::name AS col, a.* FROM ours o, aclexplode(o.acl) a
        UNION ALL
        SELECT o.classid, o.name, o.owner, t.attname, a.*
          FROM ours o JOIN pg_attribute t ON t.attrelid = o.objid AND o.classid = 'pg_class'::regclass, aclexplode(t.attacl) a
    )
    SELECT classid = 'pg_proc'::regclass AS is_function, name, col,
           format('GRANT %s%s ON %s%s TO %s%s', privilege_type, CASE WHEN col IS NOT NULL THEN format(' (%I)', col) END,
                  CASE WHEN classid = 'pg_proc'::regclass THEN 'FUNCTION ' END, name,
                  CASE grantee WHEN 0 THEN 'PUBLIC' ELSE grantee::regrole::text END,
                  CASE WHEN is_grantable THEN ' WITH GRANT OPTION' END) AS statement
      FROM granted
     WHERE grantee <> owner AND NOT (grantee = 0 AND classid = 'pg_proc'::regclass)
       AND (is_grantable OR col IS NOT NULL OR privilege_type NOT IN ('SELECT', 'EXECUTE')
            OR grantee = 0 OR pg_get_userbyid(grantee) <> ALL (:readers))
     ORDER BY statement
""")  # noqa: S608 -- composed of constants
_EXISTS = text("""
    SELECT CASE WHEN :is_function THEN to_regprocedure(:name) IS NOT NULL
                ELSE EXISTS (SELECT FROM pg_attribute t WHERE t.attrelid = to_regclass(:name) AND NOT t.attisdropped
                                AND t.attname = coalesce(:col, t.attname)) END
""")


@dataclass(frozen=True, slots=True)
class Grant:
    """A right on an object of schema inspect that a rebuild does not grant itself."""

    is_function: bool
    name: str
    """Qualified name of the view, or of the function with its argument types."""
    col: str | None
    """Column of the view to which the right is limited; None for a right on the whole object."""
    statement: str
    """GRANT statement of the right."""


def dependents(tx: Connection) -> list[str]:
    """Return descriptions of the objects of other owners that a rebuild would drop, for example `view reports.topics`. Empty if there are
    none.
    """
    return list(tx.execute(_DEPENDENTS).scalars())


def grants(tx: Connection) -> list[Grant]:
    """Return the rights on Cleave's views and functions, except rights of the owner, rights that each rebuild grants to READERS, and rights
    of PUBLIC on functions.
    """
    return [Grant(*row) for row in tx.execute(_GRANTS, {"readers": list(READERS)})]


def drop(tx: Connection) -> None:
    """Drop the views and functions of Cleave, and all objects in `dependents`."""
    for kind, name in _ours(tx):
        _execute(tx, f"DROP {kind} IF EXISTS {name} CASCADE")


def grant(tx: Connection, kept: Sequence[Grant]) -> None:
    """Grant READERS all views and functions of Cleave. Grant each right in `kept` again if its object, and its column if it has one, exist;
    skip the other rights.
    """
    for kind, name in _ours(tx):
        privilege = "SELECT ON" if kind == "VIEW" else "EXECUTE ON FUNCTION"
        _execute(tx, f"GRANT {privilege} {name} TO {', '.join(READERS)}")
    for right in kept:
        names = {"is_function": right.is_function, "name": right.name, "col": right.col}
        if tx.execute(_EXISTS, names).scalar_one():
            _execute(tx, right.statement)


def _ours(tx: Connection) -> list[tuple[str, str]]:
    """Return the kind (`VIEW` or `FUNCTION`) and the qualified name of each view and function of Cleave in schema inspect, views first. The
    name of a function has its argument types.
    """
    statement = f"SELECT relkind, name FROM ({_OURS}) ours ORDER BY relkind DESC, name"  # noqa: S608 -- a constant
    rows = tx.execute(text(statement))
    return [("VIEW" if row.relkind == "v" else "FUNCTION", row.name) for row in rows]


def _execute(tx: Connection, statement: str) -> None:
    """Execute the statement as it is: a percent sign has no special meaning."""
    tx.exec_driver_sql(statement, execution_options={"no_parameters": True})
