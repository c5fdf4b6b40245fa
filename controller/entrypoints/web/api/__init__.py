"""Calls under `/api/v1` that no declaration of `controller.actions` or `controller.questions` makes; one file a noun.

Lists come in pages. Changes have dry runs, and a repeated change is carried out once. The calls with their fields: docs/reference/rest.md, and `/openapi.json`.
"""
