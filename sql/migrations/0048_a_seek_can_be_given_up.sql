-- A seek that waits for its consumers, or for its data plane, can be given up while no cursor has moved. Whoever wants that says so in the
-- operation's row; its runner looks at it in the same statement in which it goes beyond the intent, so that one of the two happens.

ALTER TABLE cleave.operation ADD COLUMN abort_reason text;
ALTER TABLE cleave.operation ADD CONSTRAINT operation_given_up_by_hand CHECK (abort_reason IS NULL OR kind = 'seek');
COMMENT ON COLUMN cleave.operation.abort_reason IS 'Who wants it given up, and why; null where nobody does.';
COMMENT ON CONSTRAINT operation_given_up_by_hand ON cleave.operation IS 'Only a seek is given up by hand.';
