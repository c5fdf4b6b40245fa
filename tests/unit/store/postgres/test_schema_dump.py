"""What is kept of pg_dump's text."""

from __future__ import annotations

from controller.store.postgres.schema_dump import HEADER, normalise

DUMP = r"""--
-- PostgreSQL database dump
--

\restrict fKq1x

-- Dumped from database version 18.4

SET statement_timeout = 0;
SELECT pg_catalog.set_config('search_path', '', false);

--
-- Name: cleave; Type: SCHEMA
--

CREATE SCHEMA cleave;


CREATE FUNCTION cleave.f() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    SET LOCAL x = 1;  -- indented, so it is the function's own
END $$;

\unrestrict fKq1x
"""


def test_only_statements_are_kept_a_blank_line_between_them() -> None:
    assert normalise(DUMP) == (
        HEADER
        + """
CREATE SCHEMA cleave;

CREATE FUNCTION cleave.f() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    SET LOCAL x = 1;  -- indented, so it is the function's own
END $$;
"""
    )


def test_it_does_not_depend_on_version_or_run() -> None:
    other = DUMP.replace("18.4", "18.5").replace("fKq1x", "Zz9")

    assert normalise(other) == normalise(DUMP)
