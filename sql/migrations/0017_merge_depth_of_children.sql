-- How deep in merges a child will be is known when it is reserved: its parents and their ancestors never change.
-- Kept with the child, so that a commit needs no layout. NULL: reserved by an older program.
ALTER TABLE cleave.operation_child ADD COLUMN merge_depth integer;
