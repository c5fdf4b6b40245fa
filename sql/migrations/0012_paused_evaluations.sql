-- Who waits for the next instant of work asks for the end of the nearest pause; few topics were ever paused.
CREATE INDEX evaluation_paused ON cleave.evaluation (not_before) WHERE not_before > '-infinity';
