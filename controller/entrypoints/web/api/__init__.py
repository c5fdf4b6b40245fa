"""What people and programs ask of Cleave itself, under `/api/v1`: what the commands show, and most changes that they make; a file a noun.

Lists come in pages, changes can be rehearsed and repeated. The calls with their fields: docs/reference/rest.md, and `/openapi.json`.
"""
