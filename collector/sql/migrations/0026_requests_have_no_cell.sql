-- The goodput surface is added up from the cells of the question (collector/count/population.py), so that nobody reads this one.
ALTER TABLE requests DROP COLUMN IF EXISTS surface_cell;
