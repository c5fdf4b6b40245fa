-- Whoever follows the changes of all layouts asks, after it was away, for those since an instant. History is written in the
-- order of time and never changed, so an index by ranges of pages serves: it is as good as free to keep.
CREATE INDEX layout_change_since ON cleave.layout_change USING brin (committed_at) WITH (pages_per_range = 32, autosummarize = on);
