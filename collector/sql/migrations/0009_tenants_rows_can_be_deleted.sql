-- A lightweight delete of a tenant's rows rebuilds a projection of the parts that it changes, instead of failing.

ALTER TABLE requests MODIFY SETTING lightweight_mutation_projection_mode = 'rebuild';
ALTER TABLE tokens MODIFY SETTING lightweight_mutation_projection_mode = 'rebuild';
ALTER TABLE phases MODIFY SETTING lightweight_mutation_projection_mode = 'rebuild';
ALTER TABLE open_requests MODIFY SETTING lightweight_mutation_projection_mode = 'rebuild';
