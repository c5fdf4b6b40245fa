"""What people and programs ask of Cleave itself, under `/api/v1`: everything that the commands show and do, one file a noun.

Lists come in pages, changes can be rehearsed and repeated. The calls with their fields: docs/reference/rest.md, and `/openapi.json`.
"""
