-- Applications that keep positions beside their results need to know when those lose their meaning: a subscription that was deleted
-- and created anew reads from the beginning, and a seek moves it.
ALTER TABLE cleave.subscription ADD COLUMN origin bigint NOT NULL
    DEFAULT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint;
COMMENT ON COLUMN cleave.subscription.origin IS
    'Positions that applications keep of this subscription mean something under this number only: it rises with each seek.';
